// The units of sm_90 that work asynchronously: mbarriers, the tensor memory accelerator (TMA) and wgmma.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/simt/instructions.h"
#include "kernels/simt/races.h"
#include "kernels/simt/scheduler.h"

namespace goat::on_simt {

// The units of one block. Made when the block first uses one of them.
class HopperUnits {
 public:
  explicit HopperUnits(Worker& worker);

  void init_barrier(std::uint64_t* barrier, int arrivals, const void* code);
  void arrive(std::uint64_t* barrier, int expected_bytes, const void* code);
  void wait(std::uint64_t* barrier, int parity, const void* code);

  void load(void* shared, const SimulatedTensorMap& map, int column, int row, std::uint64_t* barrier,
            const void* code);
  bool land_one();  // completes a pending TMA load; false if there is none

  void meet(WarpgroupOperation operation, void* argument, const void* code);
  void start_product(void** argument, int warpgroup, bool a_in_registers);
  void commit(int warpgroup);
  void wait_products(int warpgroup, int pending);

  void check_return(const Thread& thread) const;
  std::string forgotten() const;  // at the end of the block: data that no thread waited for, or ""

 private:
  struct Barrier {
    int arrivals, missing;  // arrivals per phase; arrivals that this phase still needs
    std::int64_t missing_bytes;
    std::uint32_t phase;       // number of completed phases
    std::uint32_t waited_for;  // number of these that a thread waited for
    const void* announced;     // where bytes were last announced
    RaceChecker::Clock clock;
    std::vector<std::uint32_t> waiting;  // numbers of waiting threads
  };
  struct Load {
    unsigned char* shared;
    SimulatedTensorMap map;
    int column, row;
    std::uint64_t* barrier;
    std::uint32_t thread, clock;
    const void* code;
  };
  struct Product {
    bool a_in_registers;
    int group;
    bool done;
    std::vector<WarpgroupProduct> parts;  // by thread of the warpgroup
    std::vector<float> before;            // value of d at the start of the product, 32 per thread
    const void* code;
  };
  struct Warpgroup {
    std::uint32_t arrived = 0;
    WarpgroupOperation operation = nullptr;
    void* argument[128];
    int open_group = 0;
    std::vector<Product> products;  // oldest first
  };

  Barrier& barrier_at(std::uint64_t* place, const void* code);
  void complete_phase(Barrier& barrier);
  void land(const Load& load);
  float operand(std::uint64_t descriptor, int row, int k, bool k_is_slow) const;
  void multiply(Product& product);
  void note_operand_reads(const Product& product, int warpgroup);

  Worker& worker_;
  std::map<std::uint64_t*, Barrier> barriers_;
  std::vector<Load> loads_;
  Warpgroup warpgroups_[8];
};

}  // namespace goat::on_simt
