// Which rank of how many a process is, by what launchers put in the environment, and Slurm's lists of hosts.

#include "train/ranks/launch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "test/catch.h"
#include "train/ranks/host_list.h"
#include "train/ranks/ranks_error.h"

using namespace goat;

namespace {

// "NAME=value NAME=value"
Environment environment_of(const std::string& text) {
  Environment environment;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size()), equals = text.find('=', at);
    environment[text.substr(at, equals - at)] = text.substr(equals + 1, end - equals - 1);
    at = end + 1;
  }
  return environment;
}

std::string place(const Launch& launch) {
  std::string text = launch.launcher + " " + std::to_string(launch.rank) + "/" + std::to_string(launch.size) +
                     " local " + std::to_string(launch.local_rank) + "/" + std::to_string(launch.local_size);
  if (launch.size > 1) text += " at " + launch.address;
  return text;
}

struct Found {
  std::string variables, place;
};

struct Refused {
  std::string variables;
  std::vector<std::string> words;
};

std::string refusal(const std::string& variables) {
  try {
    return "taken as " + place(launch_of(environment_of(variables)));
  } catch (const RanksError& error) {
    CHECK(error.code == 2);
    return error.what();
  }
}

const std::string step = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 ", torchrun = "TORCHELASTIC_RUN_ID=r MASTER_ADDR=a ";
const std::string open_mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 ";

}  // namespace

TEST_CASE("launch: the first complete set of variables says which rank a process is") {
  const std::vector<Found> table{
      {"", "none 0/1 local -1/-1"},
      {"PATH=/bin HOME=/root", "none 0/1 local -1/-1"},
      {"RANK= WORLD_SIZE=", "none 0/1 local -1/-1"},
      {"RANK=0 WORLD_SIZE=1", "variables 0/1 local -1/-1"},
      {"RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1", "variables 1/2 local -1/-1 at 10.0.0.1"},
      {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4", "variables 3/4 local 3/4 at 127.0.0.1"},
      {torchrun + "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8", "torchrun 9/16 local 1/8 at a"},
      {"GOAT_JOB=j RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1", "--ranks 1/2 local -1/-1 at 127.0.0.1"},
      {step + "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NODELIST=node[03-04] SLURM_LOCALID=1",
       "srun 5/8 local 1/-1 at node03"},
      {step + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1",
       "srun 1/2 local -1/2 at 127.0.0.1"},
      {step + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=a,b MASTER_ADDR=c",
       "srun 1/2 local -1/-1 at c"},
      // The batch shell and interactive ones: one process, whatever the job's size.
      {"SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8", "none 0/1 local -1/-1"},
      {"SLURM_STEP_ID=4294967291 SLURM_PROCID=0 SLURM_NTASKS=8", "none 0/1 local -1/-1"},
      {"SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", "srun 0/1 local -1/-1"},
      {open_mpi + "OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4",
       "mpirun 1/4 local 1/4 at 127.0.0.1"},
      {open_mpi + "OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=h", "mpirun 1/4 local -1/2 at h"},
      {"PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=3", "PMI 2/3 local 0/3 at 127.0.0.1"},
      // What was started inside counts: mpirun reaches other hosts by srun, and runs in a shell of srun.
      {open_mpi + "MASTER_ADDR=h " + step + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
       "mpirun 1/4 local -1/-1 at h"},
      {open_mpi + "MASTER_ADDR=h " + step + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
       "mpirun 1/4 local -1/-1 at h"},
      {"PMI_RANK=1 PMI_SIZE=4 MASTER_ADDR=h " + step + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4",
       "PMI 1/4 local -1/-1 at h"},
      // torchrun or hand-made ranks, several in each task of srun or mpirun.
      {torchrun + "RANK=9 WORLD_SIZE=16 " + step + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
       "torchrun 9/16 local -1/-1 at a"},
      {torchrun + "RANK=0 WORLD_SIZE=1 " + open_mpi, "torchrun 0/1 local -1/-1"},
      {"RANK=9 WORLD_SIZE=16 MASTER_ADDR=a " + step + "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
       "variables 9/16 local -1/-1 at a"},
      {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=a " + open_mpi, "variables 1/4 local -1/-1 at a"},
      // A set that is not complete does not hide one that is.
      {"RANK=1 MASTER_ADDR=h " + open_mpi, "mpirun 1/4 local -1/-1 at h"},
  };
  for (const Found& row : table) {
    INFO(row.variables);
    CHECK(place(launch_of(environment_of(row.variables))) == row.place);
  }
}

TEST_CASE("launch: incomplete and contradictory variables are refused by name and value") {
  const std::vector<Refused> table{
      {"RANK=1", {"RANK=1", "WORLD_SIZE"}},
      {"WORLD_SIZE=2", {"WORLD_SIZE=2", "RANK"}},
      {"RANK=2 WORLD_SIZE=2 MASTER_ADDR=a", {"RANK=2", "WORLD_SIZE=2"}},
      {"RANK=-1 WORLD_SIZE=2", {"RANK=-1"}},
      {"RANK=one WORLD_SIZE=2", {"RANK=one", "a number"}},
      {"RANK=1x WORLD_SIZE=2", {"RANK=1x"}},
      {"RANK=0 WORLD_SIZE=0", {"WORLD_SIZE=0"}},
      {"RANK=0 WORLD_SIZE=99999999999", {"WORLD_SIZE=99999999999"}},
      {"RANK=1 WORLD_SIZE=2", {"rank 1 of 2", "export MASTER_ADDR"}},
      {"RANK=3 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a",
       {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
      {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=4 MASTER_ADDR=a", {"LOCAL_WORLD_SIZE=4", "WORLD_SIZE=2"}},
      {"RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a", {"LOCAL_RANK=1", "RANK=0"}},
      {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", {"MASTER_PORT=70000", "65535"}},
      {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=http", {"MASTER_PORT=http"}},
      {torchrun + "RANK=0 WORLD_SIZE=2 MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
       {"MASTER_PORT=65535"}},
      {"OMPI_COMM_WORLD_RANK=1", {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE"}},
      {"PMI_SIZE=2", {"PMI_SIZE=2", "PMI_RANK"}},
      {"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2",
       {"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS"}},
      {"SLURM_STEP_NUM_TASKS=2", {"SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID, SLURM_STEP_ID"}},
      {step + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=node[1-",
       {"node[1-", "']' is missing"}},
      {step + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2", {"srun", "export MASTER_ADDR"}},
      // Left over in a shell: every process would be rank 0 of 1.
      {"RANK=0 WORLD_SIZE=1 " + open_mpi,
       {"RANK=0, WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4"}},
      {"RANK=0 WORLD_SIZE=4 MASTER_ADDR=a " + open_mpi, {"RANK=0", "OMPI_COMM_WORLD_RANK=1"}},
      {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 " + step + "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4",
       {"OMPI_COMM_WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=4"}},
  };
  for (const Refused& row : table) {
    const std::string message = refusal(row.variables);
    for (const std::string& word : row.words) CHECK_THAT(message, ContainsSubstring(word));
  }
}

TEST_CASE("launch: the port is MASTER_PORT, one more beside torchrun's own, else it follows from the job") {
  const auto port = [](const std::string& variables) { return launch_of(environment_of(variables)).port; };
  const std::string two = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a ";
  CHECK(port(two + "MASTER_PORT=29500") == 29500);
  CHECK(port(two + "MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True") == 29501);
  CHECK(port(two + "MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=False") == 29500);
  const std::string srun = "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=a SLURM_JOB_ID=";
  const int first = port(srun + "7 SLURM_PROCID=0");
  for (int job = 0; job < 100; ++job) {
    const int other = port(srun + std::to_string(job) + " SLURM_PROCID=0");
    CHECK((other >= 20000 && other < 30000));
  }
  CHECK(port(srun + "7 SLURM_PROCID=1") == first);
  CHECK(port(srun + "7 SLURM_PROCID=1 SLURM_RESTART_COUNT=0") == first);
  CHECK(port(srun + "8 SLURM_PROCID=0") != first);
  CHECK(port(srun + "7 SLURM_PROCID=0 SLURM_RESTART_COUNT=1") != first);
}

TEST_CASE("launch: the job tells runs apart") {
  const auto job = [](const std::string& variables) { return launch_of(environment_of(variables)).job; };
  const std::string two = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=a ";
  CHECK(job(two + "GOAT_JOB=12-34") == "12-34");
  CHECK(job(two + "TORCHELASTIC_RUN_ID=abc TORCHELASTIC_RESTART_COUNT=1") ==
        "abc");  // may differ between hosts
  CHECK(job(two + "PBS_JOBID=9.server") == "9.server");
  CHECK(job(open_mpi + "MASTER_ADDR=a PMIX_NAMESPACE=prterun-1 SLURM_JOB_ID=7") == "prterun-1");
  CHECK(job(step + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 MASTER_ADDR=a SLURM_RESTART_COUNT=2") ==
        "7.0 restart 2");
}

TEST_CASE("launch: a program inside finds nothing of a launch that was removed") {
  const Environment cleaned = without_launch(environment_of(
      torchrun + "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_PORT=1 GOAT_JOB=j GOAT_LISTENING=5 PATH=/bin " +
      open_mpi + step + "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 PMI_RANK=0 PMI_SIZE=1"));
  CHECK(cleaned == environment_of("PATH=/bin SLURM_JOB_ID=7"));
  CHECK(started_here(environment_of("GOAT_JOB=j")));
  CHECK_FALSE(started_here(cleaned));
}

TEST_CASE("launch: only rank 0 of --ranks takes the socket that it was given") {
  const auto socket = [](const std::string& more) {
    return launch_of(environment_of("WORLD_SIZE=2 MASTER_ADDR=a GOAT_LISTENING=5 " + more)).listening;
  };
  CHECK(socket("RANK=0 GOAT_JOB=j") == 5);
  CHECK(socket("RANK=1 GOAT_JOB=j") == -1);
  CHECK(socket("RANK=0") == -1);
  CHECK_THAT(refusal("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a GOAT_JOB=j GOAT_LISTENING=x"),
             ContainsSubstring("GOAT_LISTENING=x"));
}

TEST_CASE("host list: the first host of Slurm's syntax, and what is no list") {
  CHECK(first_host("node7") == "node7");
  CHECK(first_host("b,a") == "b");
  CHECK(first_host("node[01-03,7],other") == "node01");
  CHECK(first_host("node[7,01-03]-ib.cluster") == "node7-ib.cluster");
  CHECK(first_host("rack[1-2]n[3,5],x[9]") == "rack1n3");
  for (const char* wrong : {"", ",a", "a,", "a,,b", "node[1", "node[]", "node[1-]", "node[a-b]", "node[1,]",
                            "a b", "a]", "node[1-2", "a,node[", "[", "node[1--2]", "a;rm"})
    CHECK_THROWS_AS(first_host(wrong), RanksError);
}
