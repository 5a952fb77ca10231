// Describes this binary, for --version and for bug reports.
#pragma once

#include <string>

namespace goat {

// Lines "name  value": commit, compiler and build type, devices, and libraries with their versions. Ends
// with a newline.
std::string version_text();

// Commit, compiler and what else decides on the program's arithmetic: the same in equal programs.
std::string build_text();

}  // namespace goat
