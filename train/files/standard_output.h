// Checks that a command's result has really been written to standard output.
#pragma once

namespace goat {

// Opens the descriptors 0, 1 and 2 if they are closed, so that no later file gets their numbers. Reading and
// writing them fails as it would on closed descriptors. Must be called before any file is opened.
void fill_standard_descriptors();

// Throws std::runtime_error, with the system's reason, unless everything printed so far has been written. A
// reader that has closed the pipe (`| head`) is no failure.
void finish_standard_output();

}  // namespace goat
