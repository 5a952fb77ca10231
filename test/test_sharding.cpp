// How ranks share a model: buckets and pieces of random sizes, and what a rank reads and writes of it.
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "kernels/open/open_device.h"
#include "operand.h"
#include "test/three_units.h"
#include "train/memory/parameters.h"
#include "train/memory/sharding.h"

namespace {

using goat::Bucket;
using goat::buckets_of;
using goat::chunk_elements;
using goat::DType;
using goat::Initial;
using goat::MemoryPlan;
using goat::padded_elements;
using goat::Parameter;
using goat::ParameterRole;
using goat::ParameterSet;
using goat::Piece;
using goat::pieces_of;
using goat::Sharding;
using goat::StoredTensor;

using Kind = ParameterSet::Kind;

struct Rank {
  ParameterSet parameters;
  MemoryPlan memory;

  Rank(goat::Device& device, DType dtype, const Sharding& sharding) : parameters(dtype) {
    goat::test::declare_three_units(parameters);
    parameters.plan(memory, true, sharding);
    memory.allocate(device);
    parameters.bind();
  }
};

}  // namespace

TEST_CASE("sharding: pieces cover every bucket once, in order, in whole chunks, equal on all ranks") {
  std::mt19937 random(3);
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 128})
    for (int trial = 0; trial < 20; ++trial) {
      const std::int64_t elements = std::uniform_int_distribution<std::int64_t>(1, 9'000'000)(random);
      const Sharding sharding{0, size, std::uniform_int_distribution<std::int64_t>(0, 3'000'000)(random)};
      INFO(size << " ranks, " << elements << " elements, buckets of " << sharding.bucket_elements);
      const std::vector<Bucket> buckets = buckets_of(elements, sharding);
      std::int64_t end = 0;
      for (const Bucket& bucket : buckets) {
        REQUIRE(bucket.first == end);
        REQUIRE(bucket.piece_elements > 0);
        if (size > 1) REQUIRE(bucket.piece_elements % chunk_elements == 0);
        end += size * bucket.piece_elements;
        if (size > 1)
          REQUIRE(size * bucket.piece_elements <= std::max(sharding.bucket_elements, size * chunk_elements));
      }
      REQUIRE(end == padded_elements(elements, size));
      REQUIRE(end - elements < (size == 1 ? 1 : size * chunk_elements));

      std::int64_t shard = -1;
      for (int rank = 0; rank < size; ++rank) {
        const std::vector<Piece> pieces = pieces_of(buckets, rank);
        REQUIRE(pieces.size() == buckets.size());
        std::int64_t own = 0;
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          REQUIRE(pieces[b].first == buckets[b].first + rank * buckets[b].piece_elements);
          REQUIRE(pieces[b].elements == buckets[b].piece_elements);
          REQUIRE(pieces[b].shard_first == own);
          own += pieces[b].elements;
        }
        if (rank == 0) shard = own;
        REQUIRE(own == shard);
      }
      REQUIRE(shard * size == end);
    }
  CHECK(buckets_of(0, {0, 3, 1}).empty());
  CHECK(buckets_of(70'000, {0, 1, 1}) == std::vector<Bucket>{{0, 70'000}});
}

TEST_CASE("sharding: with several nodes, what the ranks of a place own lies together") {
  for (const auto& [size, nodes] : {std::pair{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {8, 8}, {8, 1}}) {
    INFO(size << " ranks on " << nodes << " nodes");
    std::vector<int> ranks(static_cast<std::size_t>(size), -1);  // by piece
    for (int rank = 0; rank < size; ++rank) {
      const Sharding sharding{rank, size, 1, nodes};
      REQUIRE(sharding.node() * (size / nodes) + sharding.place_on_node() == rank);
      ranks.at(static_cast<std::size_t>(sharding.piece())) = rank;
    }
    for (int piece = 0; piece < size; ++piece) {
      const Sharding owner{ranks[static_cast<std::size_t>(piece)], size, 1, nodes};
      REQUIRE(owner.place_on_node() == piece / nodes);
      REQUIRE(owner.node() == piece % nodes);
    }
  }
}

TEST_CASE("sharding: a bucket's first unit is the one whose gradients are complete last") {
  const auto device = goat::open_device("cpu");
  // 70,263 decayed elements of unit 1 and then 90,000 of unit 0, in buckets of 65,536; the bias is of unit 1
  // and the norm of unit 2.
  const Rank rank(*device, DType::bf16, {0, 2, 65'536});
  const auto& groups = rank.parameters.groups();
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].first_units == std::vector<std::size_t>{1, 0, 0});
  CHECK(groups[1].first_units == std::vector<std::size_t>{1});
  CHECK(groups[2].first_units == std::vector<std::size_t>{2});
  CHECK(rank.parameters.units() == 3);
  const Rank one(*device, DType::f32, {});
  for (const auto& group : one.parameters.groups()) REQUIRE(group.first_units.size() == 1);
  CHECK(one.parameters.groups()[0].first_units.front() == 0);
  CHECK(one.parameters.groups()[1].first_units.front() == 1);
}

TEST_CASE("sharding: units lie in the order of the backward pass; places do not depend on the ranks") {
  const auto device = goat::open_device("cpu");
  Rank whole(*device, DType::f32, {}), part(*device, DType::f32, {1, 3, 0});
  const auto place = [](const Rank& rank, const char* name) {
    const Parameter& parameter = rank.parameters.at(name);
    for (const auto& group : rank.parameters.groups()) {
      const auto* base = static_cast<const float*>(group.value.data);
      const std::int64_t offset = parameter.value.as<float>() - base;
      if (offset >= 0 && offset < group.value.elements()) return offset;
    }
    throw std::logic_error("no group holds it");
  };
  CHECK(place(whole, "second") == 0);
  CHECK(place(whole, "packed") > 333 * 211 - 1);
  CHECK(place(whole, "norm") == 0);
  CHECK(place(whole, "bias") == 64);
  for (const char* name : {"packed", "second", "bias", "norm"})
    CHECK(place(whole, name) == place(part, name));
  for (std::size_t g = 0; g < whole.parameters.groups().size(); ++g)
    CHECK(whole.parameters.groups()[g].first_element == part.parameters.groups()[g].first_element);
}

TEST_CASE("sharding: the ranks together read, write and draw what one rank does") {
  const auto device = goat::open_device("cpu");
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  constexpr std::uint64_t seed = 9;
  Rank whole(*device, dtype, {});
  whole.parameters.initialize(*device, seed);
  for (const int size : {2, 3, 5}) {
    INFO(size << " ranks");
    std::vector<std::vector<std::vector<float>>> read(4);  // by kind and tensor
    for (auto& tensors : read)
      for (const StoredTensor& tensor : whole.parameters.stored())
        tensors.emplace_back(static_cast<std::size_t>(tensor.layout.elements()), -1.0f);
    std::size_t elements = 0;
    for (int rank = 0; rank < size; ++rank) {
      Rank own(*device, dtype, {rank, size, 70'000});
      own.parameters.initialize(*device, seed);
      for (std::size_t t = 0; t < read[0].size(); ++t) {
        const StoredTensor& tensor = own.parameters.stored()[t];
        for (const Kind kind : {Kind::m, Kind::v})
          own.parameters.write_pieces(*device, tensor, kind,
                                      [&](std::int64_t first, std::span<float> values) {
                                        std::iota(values.begin(), values.end(), static_cast<float>(first));
                                      });
        for (const Kind kind : {Kind::value, Kind::grad, Kind::m, Kind::v}) {
          std::int64_t last = -1;
          own.parameters.read_pieces(
              *device, tensor, kind, [&](std::int64_t first, std::span<const float> values) {
                REQUIRE(first > last);
                last = first + std::ssize(values) - 1;
                std::ranges::copy(values, read[static_cast<std::size_t>(kind)][t].begin() + first);
                elements += values.size();
              });
        }
      }
      CHECK_THROWS_AS(own.parameters.read(*device, own.parameters.stored()[0]), std::logic_error);
    }
    std::size_t all = 0;
    for (std::size_t t = 0; t < read[0].size(); ++t) {
      const StoredTensor& tensor = whole.parameters.stored()[t];
      INFO(tensor.name);
      all += 4 * read[0][t].size();
      CHECK(read[static_cast<std::size_t>(Kind::value)][t] == whole.parameters.read(*device, tensor));
      std::vector<float> numbers(read[0][t].size());
      CHECK(read[static_cast<std::size_t>(Kind::grad)][t] == numbers);
      std::iota(numbers.begin(), numbers.end(), 0.0f);
      for (const Kind kind : {Kind::m, Kind::v}) CHECK(read[static_cast<std::size_t>(kind)][t] == numbers);
    }
    CHECK(elements == all);
  }
}

TEST_CASE("sharding: ranks round their masters as one rank does") {
  const auto device = goat::open_device("cpu");
  Rank whole(*device, DType::bf16, {});
  whole.parameters.initialize(*device, 4);
  whole.parameters.round_masters(*device, goat::Rounding::stochastic, 5, 7);
  for (int rank = 0; rank < 3; ++rank) {
    Rank own(*device, DType::bf16, {rank, 3, 0});
    own.parameters.initialize(*device, 4);
    own.parameters.round_masters(*device, goat::Rounding::stochastic, 5, 7);
    for (std::size_t g = 0; g < own.parameters.groups().size(); ++g) {
      const auto &group = own.parameters.groups()[g], &all = whole.parameters.groups()[g];
      const auto mine = goat::test::values_of(*device, group.value),
                 want = goat::test::values_of(*device, all.value);
      for (const Piece& piece : group.pieces)
        for (std::int64_t i = piece.first; i < std::min(piece.first + piece.elements, group.elements); ++i)
          REQUIRE(mine[static_cast<std::size_t>(i)] == want[static_cast<std::size_t>(i)]);
    }
  }
}
