// Which rank of how many this process is: what launchers (torchrun, srun, mpirun, --ranks) say in the
// environment.
#pragma once

#include <map>
#include <string>

namespace goat {

using Environment = std::map<std::string, std::string>;
Environment environment_of_process();

struct Launch {
  std::string launcher = "none";  // none, --ranks, torchrun, variables (RANK by hand), mpirun, PMI or srun
  int rank = 0, size = 1;
  int local_rank = -1, local_size = -1;  // on this host, as the launcher says; -1 where it does not
  std::string job;      // the same in all ranks of a run, another in another run; empty where none is known
  std::string address;  // of rank 0; empty for one rank
  int port = 0;
  int listening = -1;  // a descriptor that already listens on that port (rank 0 of --ranks), or -1
};

// The first complete set of variables is taken:
//   RANK, WORLD_SIZE                                    torchrun --no-python, --ranks, or set by hand
//   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE          mpirun of Open MPI
//   PMI_RANK, PMI_SIZE                                  mpiexec of MPICH and Intel MPI
//   SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS   srun
// srun is last: a shell that srun started, and the daemons by which mpirun reaches other hosts, hold its
// variables too, and whatever was started inside is what counts. SLURM_NTASKS means nothing: the batch shell
// has it, where only one process runs. Without a set there is one rank.
//
// The address is MASTER_ADDR, else the first host of SLURM_STEP_NODELIST (srun), else the loopback if all
// ranks are on this host. The port is MASTER_PORT (one more where TORCHELASTIC_USE_AGENT_STORE=True: torchrun
// itself listens there), else one of 20000-29999 that follows from the job.
//
// Throws RanksError, naming variables and values, for a set that is incomplete, that contradicts itself or
// another one, and where no address is known.
Launch launch_of(const Environment& environment);

// The same, where variables that are incomplete or contradict each other count as no launcher: what does not
// train has no use for them. Has no address and no port, and throws no RanksError.
Launch launch_if_clear(const Environment& environment);

// Whether run_ranks_here() started this process.
bool started_here(const Environment& environment);

// The environment without all that launch_of() reads.
Environment without_launch(Environment environment);

}  // namespace goat
