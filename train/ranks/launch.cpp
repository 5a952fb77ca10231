#include "train/ranks/launch.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "data/checksum.h"
#include "train/ranks/host_list.h"
#include "train/ranks/ranks_error.h"

namespace goat {

namespace {

constexpr int most_ranks = 65536;

struct VariableSet {
  const char* launcher;
  const char *rank, *size, *step;  // step: also needed, or nullptr
  const char *local_rank, *local_size;
};

const std::vector<VariableSet>& variable_sets() {
  static const std::vector<VariableSet> sets{
      {"variables", "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
      {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr, "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"PMI", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
      {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_LOCALID", nullptr}};
  return sets;
}

// Empty where the variable is not set.
std::string value_of(const Environment& environment, const char* name) {
  const auto found = name ? environment.find(name) : environment.end();
  return found == environment.end() ? "" : found->second;
}

std::string assignment(const Environment& environment, const char* name) {
  return std::string(name) + "=" + value_of(environment, name);
}

int number_of(const Environment& environment, const char* name, int least, int most) {
  const std::string text = value_of(environment, name);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
    throw RanksError(assignment(environment, name) + ": a number from " + std::to_string(least) + " to " +
                         std::to_string(most) + " is expected",
                     2);
  return number;
}

// Steps that Slurm makes itself, batch and interactive shells, have numbers from here on.
bool is_shell_of_slurm(const std::string& step) {
  return step.size() > 10 || (step.size() == 10 && step >= "4294967000");
}

std::vector<const char*> names_of(const VariableSet& set) {
  std::vector<const char*> names{set.rank, set.size};
  if (set.step) names.push_back(set.step);
  return names;
}

bool is_complete(const Environment& environment, const VariableSet& set) {
  const auto names = names_of(set);
  return std::all_of(names.begin(), names.end(),
                     [&](const char* name) { return !value_of(environment, name).empty(); });
}

// What is there and what is missing of a set that is not complete; empty if it is not meant at all.
std::string incomplete(const Environment& environment, const VariableSet& set) {
  if (set.step) {
    const std::string step = value_of(environment, set.step);
    if (value_of(environment, set.size).empty() && (step.empty() || is_shell_of_slurm(step))) return "";
  }
  std::string present, missing;
  for (const char* name : names_of(set))
    if (value_of(environment, name).empty()) {
      missing += std::string(missing.empty() ? "" : ", ") + name;
    } else {
      present += std::string(present.empty() ? "" : ", ") + assignment(environment, name);
    }
  return present.empty() ? "" : present + " without " + missing;
}

Launch read(const Environment& environment, const VariableSet& set) {
  Launch launch;
  launch.launcher = set.launcher;
  launch.rank = number_of(environment, set.rank, 0, most_ranks - 1);
  launch.size = number_of(environment, set.size, 1, most_ranks);
  const auto refuse = [&](const char* small, const char* large) {
    throw RanksError(
        assignment(environment, small) + " and " + assignment(environment, large) + " contradict each other",
        2);
  };
  if (launch.rank >= launch.size) refuse(set.rank, set.size);
  if (!value_of(environment, set.local_rank).empty())
    launch.local_rank = number_of(environment, set.local_rank, 0, most_ranks - 1);
  if (!value_of(environment, set.local_size).empty()) {
    launch.local_size = number_of(environment, set.local_size, 1, most_ranks);
    if (launch.local_size > launch.size) refuse(set.local_size, set.size);
  } else if (set.step && value_of(environment, "SLURM_STEP_NUM_NODES") == "1") {
    launch.local_size = launch.size;
  }
  if (launch.local_rank > launch.rank) refuse(set.local_rank, set.rank);
  if (launch.local_size > 0 && launch.local_rank >= launch.local_size) refuse(set.local_rank, set.local_size);
  return launch;
}

// A launcher inside another one is how many ranks a host are started. But variables that were left over
// would make every process of a launcher rank 0 of 1.
bool contradicts(const Launch& taken, const Launch& other) {
  if (taken.launcher != "variables") return taken.size == 1 && other.size > 1;
  return taken.size < other.size || (taken.size == other.size && taken.rank != other.rank);
}

std::string first_value(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const std::string value = value_of(environment, name); !value.empty()) return value;
  return "";
}

std::string job_of(const Environment& environment, const std::string& launcher) {
  if (launcher == "--ranks") return value_of(environment, "GOAT_JOB");
  if (launcher == "torchrun") return value_of(environment, "TORCHELASTIC_RUN_ID");
  if (launcher == "srun") {
    const std::string restarts = value_of(environment, "SLURM_RESTART_COUNT");
    return value_of(environment, "SLURM_JOB_ID") + "." + value_of(environment, "SLURM_STEP_ID") +
           (restarts.empty() || restarts == "0" ? "" : " restart " + restarts);
  }
  std::string job;
  if (launcher == "mpirun")
    job = first_value(environment, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"});
  return job.empty() ? first_value(environment, {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}) : job;
}

std::string address_of(const Environment& environment, const Launch& launch) {
  if (const std::string address = value_of(environment, "MASTER_ADDR"); !address.empty()) return address;
  const std::string nodes = value_of(environment, "SLURM_STEP_NODELIST");
  if (launch.launcher == "srun" && !nodes.empty()) return first_host(nodes);
  if (launch.local_size == launch.size) return "127.0.0.1";
  throw RanksError("rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.size) + " (" +
                       launch.launcher + "): nothing says on which host rank 0 is: export MASTER_ADDR=HOST" +
                       " in all ranks (127.0.0.1 if all are on this host)",
                   2);
}

int port_of(const Environment& environment, const Launch& launch) {
  if (value_of(environment, "MASTER_PORT").empty())
    return 20000 + static_cast<int>(std::stoull(checksum_of(launch.job), nullptr, 16) % 10000);
  const bool taken = value_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  return number_of(environment, "MASTER_PORT", 1, taken ? 65534 : 65535) + (taken ? 1 : 0);
}

std::vector<Launch> complete_sets(const Environment& environment) {
  std::vector<Launch> complete;
  std::string parts;
  for (const VariableSet& set : variable_sets()) {
    if (is_complete(environment, set)) {
      complete.push_back(read(environment, set));
    } else if (const std::string part = incomplete(environment, set); !part.empty()) {
      parts += (parts.empty() ? "" : "; ") + part;
    }
  }
  if (complete.empty() && !parts.empty())
    throw RanksError(
        parts + ": the variables of a launcher are incomplete; set what is missing, or unset them", 2);
  return complete;
}

std::string described(const Environment& environment, const Launch& launch) {
  for (const VariableSet& set : variable_sets())
    if (launch.launcher == set.launcher)
      return assignment(environment, set.rank) + ", " + assignment(environment, set.size);
  return "";
}

// Without what is only needed to meet the other ranks.
Launch place_of(const Environment& environment) {
  const std::vector<Launch> sets = complete_sets(environment);
  if (sets.empty()) return {};
  Launch launch = sets.front();
  if (launch.launcher == "variables" && started_here(environment)) launch.launcher = "--ranks";
  if (launch.launcher == "variables" && !value_of(environment, "TORCHELASTIC_RUN_ID").empty())
    launch.launcher = "torchrun";
  if (launch.launcher != "--ranks" && launch.launcher != "torchrun")
    for (const Launch& other : sets)
      if (contradicts(launch, other))
        throw RanksError(described(environment, launch) + " contradicts " + described(environment, other) +
                             ": unset those that were left over",
                         2);
  launch.job = job_of(environment, launch.launcher);
  return launch;
}

}  // namespace

Environment environment_of_process() {
  Environment environment;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    if (const std::size_t equals = text.find('='); equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

bool started_here(const Environment& environment) { return !value_of(environment, "GOAT_JOB").empty(); }

Launch launch_if_clear(const Environment& environment) {
  try {
    return place_of(environment);
  } catch (const RanksError&) {
    return {};
  }
}

Launch launch_of(const Environment& environment) {
  Launch launch = place_of(environment);
  if (launch.size == 1) return launch;
  launch.address = address_of(environment, launch);
  launch.port = port_of(environment, launch);
  if (launch.rank == 0 && launch.launcher == "--ranks" && !value_of(environment, "GOAT_LISTENING").empty())
    launch.listening = number_of(environment, "GOAT_LISTENING", 3, 1 << 20);
  return launch;
}

Environment without_launch(Environment environment) {
  for (const VariableSet& set : variable_sets())
    for (const char* name : {set.rank, set.size, set.step, set.local_rank, set.local_size})
      if (name) environment.erase(name);
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "GOAT_JOB", "GOAT_LISTENING"})
    environment.erase(name);
  std::erase_if(environment, [](const auto& entry) { return entry.first.starts_with("TORCHELASTIC_"); });
  return environment;
}

}  // namespace goat
