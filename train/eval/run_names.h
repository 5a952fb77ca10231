// What `eval` calls each of several runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/run/trained_model.h"

namespace goat {

// Of each path the fewest last folders that no other path ends with: a, b for runs/a and runs/b; 1/a, 2/a for
// runs/1/a and runs/2/a. Equal paths get equal names.
std::vector<std::string> shortest_names(const std::vector<std::filesystem::path>& paths);

// The names of the models' runs. Of checkpoints of one run, RUN/step_00000800.
std::vector<std::string> names_of(const std::vector<SavedModel>& models);

}  // namespace goat
