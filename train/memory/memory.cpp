#include "train/memory/memory.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <new>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/workspace_survey.h"

namespace goat {

namespace {
constexpr std::size_t alignment = 256;
constexpr std::size_t index_of(MemoryCategory category) { return static_cast<std::size_t>(category); }
}  // namespace

const char* name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::parameters: return "parameters";
    case MemoryCategory::gradients: return "gradients";
    case MemoryCategory::optimizer: return "optimizer";
    case MemoryCategory::activations: return "activations";
    case MemoryCategory::workspace: return "workspace";
  }
  throw std::invalid_argument("name_of: unknown memory category");
}

void MemoryPlan::add(MemoryCategory category, std::string name, DType dtype,
                     std::initializer_list<std::int64_t> shape, Tensor& view) {
  Entry& entry = entries_.emplace_back(Entry{category, std::move(name), bytes_[index_of(category)], &view});
  view = Tensor::contiguous(nullptr, dtype, shape, entry.name.c_str());
  bytes_[index_of(category)] += (view.bytes() + alignment - 1) / alignment * alignment;
}

void MemoryPlan::add_workspace(const Device& device, const std::function<void(Device&)>& passes,
                               Tensor& view) {
  std::array<char*, memory_categories.size()> nowhere{};
  std::uintptr_t base = alignment;
  for (std::size_t i = 0; i < nowhere.size(); base += bytes_[i++]) nowhere[i] = std::bit_cast<char*>(base);
  place(nowhere);
  WorkspaceSurvey survey(device);
  passes(survey);
  for (Entry& entry : entries_) entry.view->data = nullptr;
  add(MemoryCategory::workspace, "temporary memory of operations", DType::f32,
      {static_cast<std::int64_t>((survey.bytes() + sizeof(float) - 1) / sizeof(float))}, view);
}

void MemoryPlan::place(const std::array<char*, memory_categories.size()>& bases) {
  for (Entry& entry : entries_) entry.view->data = bases[index_of(entry.category)] + entry.offset;
}

std::size_t MemoryPlan::bytes(MemoryCategory category) const { return bytes_[index_of(category)]; }

std::size_t MemoryPlan::total_bytes() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), std::size_t{0});
}

void MemoryPlan::refuse(const Device& device, const std::string& reason, MemoryCategory category,
                        const Advice& advice) const {
  std::string plan;
  for (const MemoryCategory each : memory_categories)
    if (bytes(each) > 0)
      plan += (plan.empty() ? "" : ", ") + (name_of(each) + (" " + bytes_text(bytes(each))));
  throw std::runtime_error("out of memory on device " + device.info().name + ": " + reason +
                           " Plan: " + plan + ". Largest tensors of the " + name_of(category) + ": " +
                           largest_tensors(category) + "." + (advice ? " " + advice() + "." : ""));
}

// Checks before allocating, because Linux may grant more memory than the machine has and kill the program
// when it uses that memory.
void MemoryPlan::require_fits(const Device& device, const Advice& advice, int processes) const {
  const std::size_t available = device.available_memory(),
                    needed = total_bytes() * static_cast<std::size_t>(processes);
  if (needed <= available) return;
  const std::string each =
      processes == 1 ? ""
                     : " by " + std::to_string(processes) + " ranks, " + bytes_text(total_bytes()) + " each";
  refuse(device,
         bytes_text(needed) + " are needed" + each + ", " + bytes_text(needed - available) +
             " more than there is.",
         largest_category(), advice);
}

void MemoryPlan::allocate(Device& device, const Advice& advice) {
  require_fits(device, advice);
  for (MemoryCategory category : memory_categories) {
    const std::size_t size = bytes(category);
    try {
      blocks_[index_of(category)] = DeviceBuffer(device, size);
    } catch (const std::bad_alloc&) {
      blocks_ = {};  // so that the advice counts with all of the memory
      refuse(device,
             std::string("no memory for the ") + name_of(category) + ", " + bytes_text(size) + " of " +
                 bytes_text(total_bytes()) + " in all.",
             category, advice);
    }
    device.set_zero(blocks_[index_of(category)].data(), size);
  }
  std::array<char*, memory_categories.size()> bases{};
  std::ranges::transform(blocks_, bases.begin(),
                         [](const DeviceBuffer& block) { return static_cast<char*>(block.data()); });
  place(bases);
}

MemoryCategory MemoryPlan::largest_category() const {
  return *std::ranges::max_element(memory_categories, {},
                                   [this](MemoryCategory category) { return bytes(category); });
}

std::string MemoryPlan::largest_tensors(MemoryCategory category) const {
  std::vector<const Entry*> largest;
  for (const Entry& entry : entries_)
    if (entry.category == category) largest.push_back(&entry);
  std::ranges::sort(largest,
                    [](const Entry* a, const Entry* b) { return a->view->bytes() > b->view->bytes(); });
  largest.resize(std::min<std::size_t>(largest.size(), 3));
  std::string text;
  for (const Entry* entry : largest)
    text += (text.empty() ? "" : ", ") + entry->name + " " + entry->view->shape_text() + " " +
            bytes_text(entry->view->bytes());
  return text;
}

std::string bytes_text(std::size_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

}  // namespace goat
