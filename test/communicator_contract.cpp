#include "test/communicator_contract.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "test/operand.h"
#include "test/random_calls.h"

namespace goat::test {

namespace {
std::string at(const char* what, int index, const Communicator& ranks) {
  return std::string(what) + " " + std::to_string(index) + " is wrong at rank " +
         std::to_string(ranks.rank()) + " of " + std::to_string(ranks.size()) + "; ";
}

// What rank `from` sends in call `call`: numbers of very different sizes.
std::vector<double> numbers_of(std::uint64_t seed, int call, int from, std::int64_t count) {
  std::seed_seq words{seed, seed >> 32, static_cast<std::uint64_t>(call), static_cast<std::uint64_t>(from)};
  std::mt19937_64 rng(words);
  std::vector<double> numbers(static_cast<std::size_t>(count));
  std::normal_distribution<double> normal;
  for (double& number : numbers) number = std::ldexp(normal(rng), static_cast<int>(rng() % 8));
  return numbers;
}

// Numbers of this rank, and the sums of all ranks' with the sums of their magnitudes.
struct Sums {
  std::vector<double> own, sum, magnitude;
};
Sums sums_of(Device& device, Communicator& ranks, std::uint64_t seed, int call, std::int64_t elements,
             DType dtype) {
  const auto count = static_cast<std::size_t>(elements);
  Sums sums{{}, std::vector<double>(count), std::vector<double>(count)};
  for (int from = 0; from < ranks.size(); ++from) {
    // As the device rounds them.
    const Operand sent = Operand::of(device, numbers_of(seed, call, from, elements * ranks.size()),
                                     {elements * ranks.size()}, "sent", dtype);
    const std::vector<double> numbers = sent.values();
    if (from == ranks.rank()) sums.own = numbers;
    for (std::size_t i = 0; i < count; ++i) {
      const double number = numbers[static_cast<std::size_t>(ranks.rank()) * count + i];
      sums.sum[i] += number;
      sums.magnitude[i] += std::abs(number);
    }
  }
  return sums;
}

std::string check_sum(Device& device, Communicator& ranks, std::uint64_t seed, int call, DType dtype) {
  std::mt19937_64 rng(seed + static_cast<std::uint64_t>(call));
  const std::int64_t sizes[] = {1, 3, 64, 257, static_cast<std::int64_t>(rng() % 5000 + 1)};
  const std::int64_t elements = sizes[rng() % 5];
  const Sums want = sums_of(device, ranks, seed, call, elements, dtype);
  const Operand send = Operand::of(device, want.own, {elements * ranks.size()}, "send", dtype),
                receive(device, dtype, {elements}, "receive");
  ranks.reduce_scatter(device, receive.tensor().data, send.tensor().data, static_cast<std::size_t>(elements),
                       dtype);
  const double unit = std::ldexp(1.0, dtype == DType::bf16 ? -8 : -24);
  const std::vector<double> got = receive.values();
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(got[i] - want.sum[i]) <= 1.01 * (ranks.size() - 1) * unit * want.magnitude[i]))
      return at("sum", call, ranks);
  return send.values() == want.own ? "" : at("what was sent in sum", call, ranks);
}

// A part of the ranks: those that it must hold, by their numbers in the whole.
std::string check_part(Device& device, Communicator& ranks, Communicator& part, std::vector<int> members) {
  const auto own = std::find(members.begin(), members.end(), ranks.rank());
  if (part.size() != static_cast<int>(members.size()) || part.rank() != own - members.begin())
    return at("the place in a part", part.rank(), ranks);
  const std::vector<double> want(members.begin(), members.end());
  const Operand number = Operand::of(device, {static_cast<double>(ranks.rank())}, {1}, "number"),
                all(device, DType::f32, {part.size()}, "all");
  part.all_gather(device, all.tensor().data, number.tensor().data, sizeof(float));
  return all.values() == want ? "" : at("the members of a part", part.rank(), ranks);
}

std::string complaint_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}
}  // namespace

std::string check_sums(Device& device, Communicator& ranks, std::uint64_t seed, int count) {
  std::string faults;
  for (int call = 0; call < count && faults.size() < 500; ++call)
    for (const DType dtype : {DType::f32, DType::bf16}) faults += check_sum(device, ranks, seed, call, dtype);
  ranks.reduce_scatter(device, nullptr, nullptr, 0, DType::f32);
  return faults;
}

std::string check_steps(Device& compute, Device& exchange, Communicator& ranks, int count) {
  const std::int64_t size = ranks.size(), width = 37;
  const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
  const Operand send(compute, DType::f32, {size, width}, "send"),
      parts(compute, DType::f32, {size, width}, "parts"), all(compute, DType::f32, {size, width}, "all");
  const auto computed = compute.make_event(), exchanged = compute.make_event();
  const auto hand_over = [](Device& from, DeviceEvent& event, Device& to) {
    if (&from == &to) return;
    from.record(event);
    to.follow(event);
  };
  std::string faults;
  for (int step = 0; step < count && faults.size() < 500; ++step) {
    const auto value = [&](int from, std::int64_t to) {
      return 100 * step + 10 * from + static_cast<int>(to);
    };
    for (std::int64_t r = 0; r < size; ++r)
      compute.run(Fill{send.tensor().select(0, r), static_cast<float>(value(ranks.rank(), r))});
    hand_over(compute, *computed, exchange);
    ranks.all_to_all(exchange, parts.tensor().data, send.tensor().data, bytes);
    const Tensor own = all.tensor().select(0, ranks.rank());
    exchange.run(SumParts{own, parts});
    ranks.all_gather(exchange, all.tensor().data, own.data, bytes);
    hand_over(exchange, *exchanged, compute);
    const Tensor first = send.tensor().select(0, 0);
    compute.run(SumParts{first, all});
    hand_over(compute, *computed, exchange);
    ranks.broadcast(exchange, first.data, bytes, step % ranks.size());
    hand_over(exchange, *exchanged, compute);
    double want = 0;
    for (int from = 0; from < ranks.size(); ++from)
      for (std::int64_t to = 0; to < size; ++to) want += value(from, to);
    std::vector<float> got(static_cast<std::size_t>(width));
    compute.download(got.data(), first.data, bytes);
    if (std::ranges::count(got, static_cast<float>(want)) != width) faults += at("step", step, ranks);
  }
  return faults;
}

std::string check_splits(Device& device, Communicator& ranks, std::uint64_t seed, int count) {
  const int size = ranks.size(), own = ranks.rank();
  std::vector<std::unique_ptr<Communicator>> parts;
  std::vector<std::vector<int>> members;
  const auto add = [&](int color, int key, const std::function<bool(int)>& belongs) {
    parts.push_back(ranks.split(color, key));
    members.emplace_back();
    for (int r = 0; r < size; ++r)
      if (belongs(r)) members.back().push_back(r);
  };
  if (size == 4) {  // two nodes of two
    add(own / 2, own, [&](int r) { return r / 2 == own / 2; });
    add(own % 2, own, [&](int r) { return r % 2 == own % 2; });
  }
  add(own % 2, -own, [&](int r) { return r % 2 == own % 2; });
  std::ranges::reverse(members.back());
  std::string faults;
  for (std::size_t i = 0; i < parts.size(); ++i) faults += check_part(device, ranks, *parts[i], members[i]);
  for (int round = 0; round < count && faults.size() < 500; ++round) {
    for (const auto& part : parts)
      faults += random_calls(device, *part, nullptr, seed + static_cast<std::uint64_t>(round), 5, 3000);
    faults += random_calls(device, ranks, nullptr, seed + static_cast<std::uint64_t>(round), 5, 3000);
  }
  return faults;
}

std::string check_capture(Device& device, Communicator& ranks) {
  const std::int64_t width = 100, size = ranks.size();
  const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
  const Operand own(device, DType::f32, {width}, "own"), all(device, DType::f32, {size, width}, "all"),
      swapped(device, DType::f32, {size, width}, "swapped");
  device.synchronize();
  const std::uint64_t before = ranks.completed();
  const auto graph = device.capture([&] {
    ranks.all_gather(device, all.tensor().data, own.tensor().data, bytes);
    ranks.all_to_all(device, swapped.tensor().data, all.tensor().data, bytes);
  });
  std::string faults;
  for (int replay = 0; replay < 3; ++replay) {
    device.run(Fill{own, static_cast<float>(10 * replay + ranks.rank())});
    device.replay(*graph);
    std::vector<double> want;  // every rank sends this one the row of this rank
    want.insert(want.end(), static_cast<std::size_t>(size * width), 10 * replay + ranks.rank());
    if (swapped.values() != want) faults += at("replay", replay, ranks);
  }
  return ranks.completed() == before + 2 ? faults : faults + at("the count of recorded calls", 2, ranks);
}

std::string check_count(Device& device, Communicator& ranks, int count, bool late) {
  const Operand memory = Operand::zeros(device, {1000}, "memory");
  device.synchronize();
  const std::uint64_t before = ranks.completed();
  std::atomic<std::uint64_t> begun = before;
  std::atomic<bool> over = false, wrong = false;
  std::thread watcher([&] {
    for (std::uint64_t last = before; !over; std::this_thread::yield()) {
      const std::uint64_t now = ranks.completed();
      wrong = wrong || now < last || now > begun || !ranks.trouble().empty();
      last = now;
    }
  });
  std::string faults;
  try {
    for (int call = 0; call < count; ++call) {
      ++begun;
      ranks.broadcast(device, memory.tensor().data, memory.tensor().bytes(), call % ranks.size());
    }
    if (late && ranks.completed() != before) faults += at("the count before a wait", count, ranks);
    device.synchronize();
  } catch (...) {
    over = true;
    watcher.join();
    throw;
  }
  over = true;
  watcher.join();
  if (wrong) faults += at("the count of another thread", count, ranks);
  if (ranks.completed() != before + static_cast<std::uint64_t>(count))
    faults += at("the count after a wait", count, ranks);
  return faults;
}

std::string check_refusals(Device& device, Communicator& ranks) {
  const Operand memory = Operand::zeros(device, {1000}, "memory");
  float* const data = memory.tensor().as<float>();
  const std::string said = complaint_of([&] { ranks.broadcast(device, data, 4, ranks.size()); });
  const std::string again = complaint_of([&] { ranks.broadcast(device, data, 4, 0); });
  std::string faults;
  if (said != "broadcast: root " + std::to_string(ranks.size()) + " is not a rank: there are " +
                  std::to_string(ranks.size()))
    faults += "a root that is no rank: '" + said + "'; ";
  if (again != said) faults += "after an error: '" + again + "'; ";
  return faults;
}

}  // namespace goat::test
