#include "kernels/simt/hopper.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/simt/device_memory.h"
#include "kernels/simt/report.h"

namespace goat::on_simt {

namespace {

constexpr int box_columns = 64;
constexpr std::size_t box_row_bytes = box_columns * 2;  // bytes of 64 bf16: 128, the width of the swizzle
constexpr int warpgroup_threads = 128;
constexpr int accumulators = 32;  // per thread, for m64n64

// The 128-byte swizzle: the index of the 16-byte column in a row of 128 bytes is XORed with the row
// index modulo 8.
std::size_t swizzled(std::size_t offset) { return offset ^ (offset >> 7 & 7) << 4; }

float widened(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

HopperUnits& units() {
  Worker& worker = *current_worker;
  if (!worker.hopper) worker.hopper = std::make_unique<HopperUnits>(worker);
  return *worker.hopper;
}

}  // namespace

HopperUnits::HopperUnits(Worker& worker) : worker_(worker) {}

// ---- mbarriers

HopperUnits::Barrier& HopperUnits::barrier_at(std::uint64_t* place, const void* code) {
  const auto found = barriers_.find(place);
  if (found == barriers_.end()) fail("mbarrier: used before it was initialised, at " + source_place(code));
  return found->second;
}

void HopperUnits::init_barrier(std::uint64_t* barrier, int arrivals, const void* code) {
  if (reinterpret_cast<std::uintptr_t>(barrier) % 8 != 0 || !worker_.shared.valid(barrier, 8))
    fail("mbarrier: not in shared memory, or not at a multiple of 8 bytes, at " + source_place(code));
  if (arrivals < 1)
    fail(formatted("mbarrier: initialised for %d arrivals, at ", arrivals) + source_place(code));
  if (!barriers_.emplace(barrier, Barrier{arrivals, arrivals, 0, 0, 0, nullptr, {}, {}}).second)
    fail("mbarrier: initialised twice, at " + source_place(code));
}

void HopperUnits::complete_phase(Barrier& barrier) {
  if (barrier.missing > 0 || barrier.missing_bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  for (const std::uint32_t number : barrier.waiting) worker_.make_ready(worker_.threads[number]);
  barrier.waiting.clear();
}

void HopperUnits::arrive(std::uint64_t* place, int expected_bytes, const void* code) {
  Barrier& barrier = barrier_at(place, code);
  if (barrier.missing <= 0)
    fail("mbarrier: more arrivals than it was initialised for, at " + source_place(code));
  if (worker_.races) worker_.races->release(current_thread->number, barrier.clock);
  barrier.missing_bytes += expected_bytes;
  if (expected_bytes > 0) barrier.announced = code;
  --barrier.missing;
  complete_phase(barrier);
}

// Waits for the end of the phase with this parity. The first phase has parity 0.
void HopperUnits::wait(std::uint64_t* place, int parity, const void* code) {
  Barrier& barrier = barrier_at(place, code);
  Thread& self = *current_thread;
  self.code = code;
  while (static_cast<int>(barrier.phase & 1) == parity) {
    self.waiting = Waiting::for_mbarrier;
    barrier.waiting.push_back(self.number);
    worker_.suspend();
  }
  barrier.waited_for = barrier.phase;
  if (worker_.races) worker_.races->acquire(self.number, barrier.clock);
}

// ---- tensor memory accelerator

void HopperUnits::load(void* shared, const SimulatedTensorMap& map, int column, int row,
                       std::uint64_t* barrier, const void* code) {
  const auto bytes = static_cast<std::size_t>(map.box_rows) * box_row_bytes;
  if (!worker_.shared.contains(shared) || worker_.shared.offset(shared) % 1024 != 0)
    fail("TMA: the destination is not shared memory at a multiple of 1024 bytes, at " + source_place(code));
  if (!worker_.shared.valid(shared, bytes))
    fail(formatted("TMA: out of bounds, a box of %zu bytes is written at ", bytes) +
         worker_.shared.describe(shared) + ", at " + source_place(code));
  if (!DeviceMemory::instance().contains(map.base, static_cast<std::size_t>(map.rows) * map.row_bytes))
    fail("TMA: out of bounds, the matrix is not in device memory, at " + source_place(code));
  barrier_at(barrier, code);
  Load load{static_cast<unsigned char*>(shared), map, column, row, barrier, current_thread->number, 0, code};
  if (worker_.races) {
    worker_.races->access(*current_thread, shared, bytes, Access::pending_write, code);
    load.clock = worker_.races->tick(load.thread);
  }
  if (worker_.copies_land_at_once())
    land(load);
  else
    loads_.push_back(load);
}

bool HopperUnits::land_one() {
  if (loads_.empty()) return false;
  const std::size_t index = worker_.order == Order::random ? worker_.random() % loads_.size() : 0;
  const Load load = loads_[index];
  loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(index));
  land(load);
  return true;
}

void HopperUnits::land(const Load& load) {
  const std::size_t start = worker_.shared.offset(load.shared);
  for (int r = 0; r < load.map.box_rows; ++r)
    for (int c = 0; c < box_columns; c += 8) {
      unsigned char* to =
          worker_.shared.region() +
          swizzled(start + static_cast<std::size_t>(r) * box_row_bytes + static_cast<std::size_t>(c) * 2);
      const int row = load.row + r, column = load.column + c;
      if (row >= 0 && row < load.map.rows && column >= 0 && column < load.map.columns)
        std::memcpy(to,
                    load.map.base + static_cast<std::size_t>(row) * load.map.row_bytes +
                        static_cast<std::size_t>(column) * 2,
                    16);
      else
        std::memset(to, 0, 16);
    }
  const auto bytes = static_cast<std::size_t>(load.map.box_rows) * box_row_bytes;
  Barrier& barrier = barrier_at(load.barrier, load.code);
  if (worker_.races)
    worker_.races->tma_landed(load.thread, load.clock, load.shared, bytes, load.code, barrier.clock);
  barrier.missing_bytes -= static_cast<std::int64_t>(bytes);
  complete_phase(barrier);
}

// ---- wgmma

// Waits until all threads of a warpgroup have called the same operation. The last thread executes it.
void HopperUnits::meet(WarpgroupOperation operation, void* argument, const void* code) {
  Thread& self = *current_thread;
  const unsigned number = self.number / warpgroup_threads;
  Warpgroup& group = warpgroups_[number];
  self.code = code;
  if ((number + 1) * warpgroup_threads > worker_.threads.size())
    fail("wgmma: the warpgroup is not complete, at " + source_place(code));
  if (group.arrived && group.operation != operation)
    fail("warpgroup divergence: its threads are at different wgmma instructions, one at " +
         source_place(code));
  group.operation = operation;
  group.argument[self.number % warpgroup_threads] = argument;
  if (++group.arrived < warpgroup_threads) {
    self.waiting = Waiting::in_collective;
    worker_.suspend();
    return;
  }
  group.arrived = 0;
  ++worker_.counters.collectives;
  operation(group.argument, static_cast<int>(number));
  for (unsigned i = 0; i < warpgroup_threads; ++i) {
    const Thread& other = worker_.threads[number * warpgroup_threads + i];
    if (&other != &self) worker_.make_ready(other);
  }
}

// Element (row, k) of an operand in shared memory. 8 rows of 128 bytes are a group; consecutive groups start
// a stride apart.
float HopperUnits::operand(std::uint64_t descriptor, int row, int k, bool k_is_slow) const {
  const std::size_t base = (descriptor & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
  const auto slow = static_cast<std::size_t>(k_is_slow ? k : row),
             fast = static_cast<std::size_t>(k_is_slow ? row : k);
  std::uint16_t bits;
  std::memcpy(&bits, worker_.shared.region() + swizzled(base + slow / 8 * stride + slow % 8 * 128 + fast * 2),
              sizeof bits);
  return widened(bits);
}

void HopperUnits::multiply(Product& product) {
  for (int thread = 0; thread < warpgroup_threads; ++thread)
    if (std::memcmp(product.parts[static_cast<std::size_t>(thread)].d,
                    &product.before[static_cast<std::size_t>(thread) * accumulators],
                    accumulators * sizeof(float)) != 0)
      fail(formatted(
               "wgmma: thread %d wrote its accumulators before they were waited for, product started at ",
               thread) +
           source_place(product.code));
  static thread_local float a[64][16], b[16][64];
  const WarpgroupProduct& first = product.parts[0];
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < 64; ++n) b[k][n] = operand(first.b_descriptor, n, k, product.a_in_registers);
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < 16; ++k) {
      if (!product.a_in_registers) {
        a[i][k] = operand(first.a_descriptor, i, k, false);
      } else {
        const int thread = i / 16 * 32 + i % 8 * 4 + k % 8 / 2;
        const std::uint32_t pair = product.parts[static_cast<std::size_t>(thread)].a[i % 16 / 8 + k / 8 * 2];
        a[i][k] = std::bit_cast<float>(k % 2 ? pair & 0xFFFF0000u : pair << 16);
      }
    }
  for (int thread = 0; thread < warpgroup_threads; ++thread) {
    const WarpgroupProduct& part = product.parts[static_cast<std::size_t>(thread)];
    for (int q = 0; q < accumulators; ++q) {
      const int i = thread / 32 * 16 + thread % 32 / 4 + (q >> 1 & 1) * 8,
                n = q / 4 * 8 + thread % 4 * 2 + (q & 1);
      float sum = part.scale_d ? part.d[q] : 0;
      for (int k = 0; k < 16; ++k) sum += a[i][k] * b[k][n];
      part.d[q] = sum;
    }
  }
  product.done = true;
}

// Records the reads of the operands in the race checker, as reads by the first thread of the warpgroup.
void HopperUnits::note_operand_reads(const Product& product, int warpgroup) {
  if (!worker_.races) return;
  const Thread& reader = worker_.threads[static_cast<std::size_t>(warpgroup) * warpgroup_threads];
  const auto note = [&](std::uint64_t descriptor, bool k_is_slow) {
    const std::size_t base = (descriptor & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
    for (std::size_t row = 0; row < (k_is_slow ? 16 : 64); ++row) {
      const std::size_t at = base + row / 8 * stride + row % 8 * 128;
      for (std::size_t byte = 0; byte < (k_is_slow ? 128 : 32); byte += 16)
        worker_.races->access(reader, worker_.shared.region() + swizzled(at + byte), 16, Access::read,
                              product.code);
    }
  };
  if (!product.a_in_registers) note(product.parts[0].a_descriptor, false);
  note(product.parts[0].b_descriptor, product.a_in_registers);
}

void HopperUnits::start_product(void** argument, int warpgroup, bool a_in_registers) {
  Warpgroup& group = warpgroups_[warpgroup];
  Product product{a_in_registers, group.open_group, false, {}, {}, current_thread->code};
  for (int thread = 0; thread < warpgroup_threads; ++thread) {
    const auto& part = *static_cast<const WarpgroupProduct*>(argument[thread]);
    product.parts.push_back(part);
    const WarpgroupProduct& first = product.parts[0];
    if (part.a_descriptor != first.a_descriptor || part.b_descriptor != first.b_descriptor ||
        part.scale_d != first.scale_d)
      fail("wgmma: descriptors or scale_d differ between the threads of the warpgroup, at " +
           source_place(product.code));
  }
  note_operand_reads(product, warpgroup);
  const bool chained = !group.products.empty() && group.products.back().parts[0].d == product.parts[0].d &&
                       !group.products.back().done;
  if (!chained)
    for (const WarpgroupProduct& part : product.parts)
      product.before.insert(product.before.end(), part.d, part.d + accumulators);
  const bool all_done = std::all_of(group.products.begin(), group.products.end(),
                                    [](const Product& earlier) { return earlier.done; });
  group.products.push_back(std::move(product));
  ++worker_.outstanding;
  if (all_done && worker_.copies_land_at_once()) multiply(group.products.back());
}

void HopperUnits::commit(int warpgroup) { ++warpgroups_[warpgroup].open_group; }

void HopperUnits::wait_products(int warpgroup, int pending) {
  Warpgroup& group = warpgroups_[warpgroup];
  std::size_t waited = 0;
  for (; waited < group.products.size() && group.products[waited].group < group.open_group - pending;
       ++waited) {
    Product& product = group.products[waited];
    if (product.done) continue;
    if (product.before.empty())  // continues the sum of the previous product, which is complete now
      for (const WarpgroupProduct& part : product.parts)
        product.before.insert(product.before.end(), part.d, part.d + accumulators);
    multiply(product);
  }
  group.products.erase(group.products.begin(), group.products.begin() + static_cast<std::ptrdiff_t>(waited));
  worker_.outstanding -= static_cast<int>(waited);
}

void HopperUnits::check_return(const Thread& thread) const {
  const Warpgroup& group = warpgroups_[thread.number / warpgroup_threads];
  if (!group.products.empty())
    fail("a thread returned with a wgmma product under way that was never waited for, started at " +
         source_place(group.products[0].code));
}

std::string HopperUnits::forgotten() const {
  for (const auto& [place, barrier] : barriers_)
    if (barrier.announced && (barrier.waited_for < barrier.phase || barrier.missing_bytes != 0))
      return "nobody waited for the data announced to an mbarrier at " + source_place(barrier.announced);
  return "";
}

// ---- functions that kernels call

void simulated_mbarrier_init(std::uint64_t* barrier, int arrivals) {
  units().init_barrier(barrier, arrivals, __builtin_return_address(0));
}
void simulated_mbarrier_arrive(std::uint64_t* barrier, int expected_bytes) {
  units().arrive(barrier, expected_bytes, __builtin_return_address(0));
}
void simulated_mbarrier_wait(std::uint64_t* barrier, int parity) {
  units().wait(barrier, parity, __builtin_return_address(0));
}

SimulatedTensorMap simulated_tensor_map(const void* base, int rows, int columns, int box_rows) {
  if (reinterpret_cast<std::uintptr_t>(base) % 16 != 0 || columns * 2 % 16 != 0)
    throw std::invalid_argument("tensor map: base and row length must be multiples of 16 bytes");
  if (box_rows < 1 || box_rows > 256) throw std::invalid_argument("tensor map: a box has 1 to 256 rows");
  return {static_cast<const unsigned char*>(base), rows, columns, static_cast<std::size_t>(columns) * 2,
          box_rows};
}
void simulated_tma_load(void* shared, const SimulatedTensorMap& map, int column, int row,
                        std::uint64_t* barrier) {
  units().load(shared, map, column, row, barrier, __builtin_return_address(0));
}

void warpgroup_collective(WarpgroupOperation operation, void* argument) {
  units().meet(operation, argument, __builtin_return_address(0));
}
void start_product_shared(void** argument, int warpgroup) {
  units().start_product(argument, warpgroup, false);
}
void start_product_registers(void** argument, int warpgroup) {
  units().start_product(argument, warpgroup, true);
}
void simulated_wgmma_commit() {
  units().meet([](void**, int warpgroup) { units().commit(warpgroup); }, nullptr,
               __builtin_return_address(0));
}
void simulated_wgmma_wait(int pending) {
  units().meet([](void** argument,
                  int warpgroup) { units().wait_products(warpgroup, *static_cast<const int*>(argument[0])); },
               &pending, __builtin_return_address(0));
}

}  // namespace goat::on_simt
