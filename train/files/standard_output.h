// Standard output as the place of a command's result: whether it has arrived there.
#pragma once

namespace goat {

// Gives the descriptors 0, 1 and 2 a place where they are closed, so that no file that is opened later gets
// their numbers. Reading the one and writing the others fail as they would when closed. To be called before
// any file is opened.
void fill_standard_descriptors();

// Throws std::runtime_error, with the system's reason, unless everything printed so far has been written. A
// reader that has left (`| head`) is no failure.
void finish_standard_output();

}  // namespace goat
