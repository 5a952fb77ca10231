#include "kernels/workspace_survey.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace goat {

void* WorkspaceSurvey::allocate(std::size_t bytes) {
  throw std::logic_error("WorkspaceSurvey: allocate(" + std::to_string(bytes) +
                         "): a survey has no memory; give it planned tensors");
}

WorkspaceMemory WorkspaceSurvey::use_workspace(WorkspaceMemory memory) {
  return std::exchange(workspace_, memory);
}

#define GOAT_DEFINE_LAUNCH(Operation, name) \
  void WorkspaceSurvey::launch(const Operation& op) { bytes_ = std::max(bytes_, device_.workspace(op)); }
GOAT_FOR_EACH_OPERATION(GOAT_DEFINE_LAUNCH)
#undef GOAT_DEFINE_LAUNCH

}  // namespace goat
