// Opens a device by its name: the one place that knows all devices of this build.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace goat {

// Opens "auto", "cpu", "cuda" or "simt". "auto" takes the best device present. `reason` (if given) receives
// why the device was chosen and, if a GPU cannot be used, what would make it usable. Throws
// std::invalid_argument if this binary or this machine lacks the device; the message says how to get it.
std::unique_ptr<Device> open_device(const std::string& name, std::string* reason = nullptr);

}  // namespace goat
