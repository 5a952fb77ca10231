// What this binary is: for --version and for reports of faults.
#pragma once

#include <string>

namespace goat {

// Lines "name  value": commit, compiler and build type, the devices built in, the libraries with their
// versions. Ends with a newline.
std::string version_text();

}  // namespace goat
