// Opens a device by its name: the one place that knows all devices of this build.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"
#include "kernels/device_choice.h"

namespace goat {

// Opens "auto", "cpu", "cuda" or "simt". "auto" takes the best device present. `reason` (if given) receives
// why the device was chosen and, if a GPU cannot be used, what would make it usable. Throws
// std::invalid_argument if this binary or this machine lacks the device; the message says how to get it.
// `place` chooses one of several GPUs: gpu_of().
std::unique_ptr<Device> open_device(const std::string& name, std::string* reason = nullptr,
                                    const DevicePlace& place = {});

}  // namespace goat
