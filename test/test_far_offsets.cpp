// Elements 2^31 and more behind the first of their tensor: offsets need 64 bits. The memory in between is
// reserved but never touched, so that it costs nothing; a GPU's cannot be had that way. What every element of
// a contiguous operand must be read for (norms, GELU, optimizer) is out of reach here.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <vector>

#include "test/attention_operands.h"
#include "test/catch.h"
#include "test/tested_device.h"

#ifdef GOAT_HAS_SIMT
#include "test/scoped_options.h"
#endif

using namespace goat;
using namespace goat::test;

namespace {
using Index = std::int64_t;
using Values = std::vector<double>;
constexpr Index far = Index{1} << 31;

// Memory of a device that is the host's, in which nothing is written at first.
class UntouchedMemory {
 public:
  UntouchedMemory(Device& device, Index bytes) {
#ifdef GOAT_HAS_SIMT
    RestoredOptions options;
    options->poison = false;
#endif
    buffer_ = DeviceBuffer(device, static_cast<std::size_t>(bytes));
  }

  // A view that begins at element `first`.
  Tensor view(DType dtype, Index first, std::vector<Index> shape, std::vector<Index> stride,
              const char* name) const {
    Tensor tensor = Tensor::contiguous(nullptr, dtype, {}, name);
    tensor.data = static_cast<unsigned char*>(buffer_.data()) + first * static_cast<Index>(size_of(dtype));
    tensor.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.shape.begin());
    std::copy(stride.begin(), stride.end(), tensor.stride.begin());
    return tensor;
  }

 private:
  DeviceBuffer buffer_;
};

// As UntouchedMemory, or nothing, with a warning, where the machine does not reserve that much.
std::optional<UntouchedMemory> reserved(Device& device, Index bytes) {
  try {
    return UntouchedMemory(device, bytes);
  } catch (const std::bad_alloc&) {
    WARN("not tested: " << bytes << " bytes cannot be reserved here");
    return std::nullopt;
  }
}

// Sanitizers keep notes of every byte, touched or not.
bool keeps_notes() {
#if defined(__SANITIZE_ADDRESS__)
  return true;
#elif defined(GOAT_HAS_SIMT)
  return on_simt::race_checking_available();
#else
  return false;
#endif
}

// Calls body(element) for the elements of a view in host memory, row-major.
template <class Body>
void for_each_element(const Tensor& view, Body body) {
  for (Index i = 0; i < view.elements(); ++i) {
    Index place = 0, rest = i;
    for (int dim = view.rank - 1; dim >= 0; --dim) {
      const auto d = static_cast<std::size_t>(dim);
      place += rest % view.shape[d] * view.stride[d];
      rest /= view.shape[d];
    }
    body(static_cast<unsigned char*>(view.data) + place * static_cast<Index>(size_of(view.dtype)));
  }
}

void copy_values(const Tensor& to, const Tensor& from) {
  std::vector<const unsigned char*> sources;
  for_each_element(from, [&](const unsigned char* element) { sources.push_back(element); });
  std::size_t next = 0;
  for_each_element(to,
                   [&](unsigned char* element) { std::memcpy(element, sources[next++], size_of(to.dtype)); });
}

// Whether two views in host memory hold the same bits, and not zeros alone.
bool same_values(const Tensor& a, const Tensor& b) {
  std::vector<const unsigned char*> elements;
  for_each_element(a, [&](const unsigned char* element) { elements.push_back(element); });
  std::size_t next = 0, different = 0, not_zero = 0;
  for_each_element(b, [&](const unsigned char* element) {
    different += std::memcmp(element, elements[next++], size_of(b.dtype)) != 0;
    not_zero +=
        std::any_of(element, element + size_of(b.dtype), [](unsigned char byte) { return byte != 0; });
  });
  return different == 0 && not_zero > 0;
}

// The body reads and writes device memory as the host's own: no work may wait in a queue.
template <class Body>
void for_each_host_variant(Body body) {
  if (keeps_notes()) return;
#ifdef GOAT_HAS_SIMT
  RestoredOptions options;
  options->streams = on_simt::Streams::at_once;
#endif
  for (const auto& [name, dtype] : variants()) {
    if (name == "cuda") continue;
    const auto device = open_tested(name);
    const auto seed = fresh_seed();
    INFO(name << ", " << name_of(dtype) << ", GOAT_TEST_SEED=" << seed);
    Rng rng(seed);
    body(*device, dtype, rng);
  }
}

// Strides of [B, T, H, d_h], one of which takes two steps, or one, beyond 2^31.
std::vector<std::vector<Index>> far_strides() {
  const Index near = 1 << 12, half = far / 2 + 64;
  return {{far + 64, 4 * near, near, 1}, {8 * near, half, near, 1}, {near, 2 * near, far + 64, 1}};
}
}  // namespace

TEST_CASE("classifier: rows of logits beyond 2^31 elements have the loss that they have elsewhere") {
  for_each_host_variant([](Device& device, DType dtype, Rng& rng) {
    const Index N = 3, padded = far / 2 + 8, vocab = 11;
    UntouchedMemory memory(device, ((N - 1) * padded + vocab) * static_cast<Index>(size_of(dtype)));
    const auto near = Operand::normal(device, rng, {N, vocab}, "logits", 1, dtype);
    const Tensor logits = memory.view(dtype, 0, {N, padded}, {padded, 1}, "logits");
    copy_values(logits.slice(1, 0, vocab), near);
    const auto targets = Operand::of(device, {1, 0, 10}, {N}, "targets", DType::i32);
    const Operand losses(device, DType::f32, {N}, "losses"), want(device, DType::f32, {N}, "want");
    device.run(CrossEntropy{logits, losses, targets, {}, 1, vocab, false});
    device.run(CrossEntropy{near, want, targets, {}, 1, vocab, false});
    for (std::size_t n = 0; n < 3; ++n) CHECK(losses.values()[n] == Approx(want.values()[n]).epsilon(1e-6));
  });
}

TEST_CASE("embedding: rows of the table beyond 2^31 elements are read and added to") {
  for_each_host_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index width : {1024, 1021}) {
      const Index rows = far / width + 3;
      UntouchedMemory memory(device, rows * width * static_cast<Index>(size_of(dtype)));
      const Tensor table = memory.view(dtype, 0, {rows, width}, {width, 1}, "table");
      const auto wanted = Operand::normal(device, rng, {2, width}, "rows", 1, dtype);
      const auto tokens = Operand::of(device, {static_cast<double>(rows - 1), 0}, {2}, "tokens", DType::i32);
      copy_values(table.slice(0, rows - 1, 1), wanted.tensor().slice(0, 0, 1));
      copy_values(table.slice(0, 0, 1), wanted.tensor().slice(0, 1, 1));
      const Operand out(device, dtype, {2, width}, "out");
      device.run(EmbeddingForward{out, tokens, table});
      CHECK(same_values(out, wanted));

      UntouchedMemory gradients(device, rows * width * static_cast<Index>(sizeof(float)));
      const Tensor dtable = gradients.view(DType::f32, 0, {rows, width}, {width, 1}, "dtable");
      const auto zeros = Operand::zeros(device, {1, width}, "zeros"),
                 sums = Operand::of(device, wanted.values(), {2, width}, "sums");
      copy_values(dtable.slice(0, rows - 1, 1), zeros);
      copy_values(dtable.slice(0, 0, 1), zeros);
      device.run(EmbeddingBackward{dtable, wanted, tokens});
      CHECK(same_values(dtable.slice(0, rows - 1, 1), sums.tensor().slice(0, 0, 1)));
      CHECK(same_values(dtable.slice(0, 0, 1), sums.tensor().slice(0, 1, 1)));
    }
  });
}

TEST_CASE("positions: rows of the table beyond 2^31 elements are read") {
  for_each_host_variant([](Device& device, DType dtype, Rng& rng) {
    for (const Index width : {1024, 1021}) {
      const Index rows = far / width + 3;
      UntouchedMemory memory(device, rows * width * static_cast<Index>(sizeof(float)));
      const Tensor table = memory.view(DType::f32, 0, {rows, width}, {width, 1}, "table");
      const auto wanted = Operand::normal(device, rng, {1, width}, "row", 1, dtype),
                 row = Operand::of(device, wanted.values(), {1, width}, "row"),
                 stream =
                     Operand::of(device, Values(wanted.values().size(), 0.0), {1, 1, width}, "stream", dtype);
      copy_values(table.slice(0, rows - 1, 1), row);
      device.run(AddPositions{stream, table, rows - 1});
      CHECK(same_values(stream.tensor().reshape({1, width}), wanted));
    }
  });
}

TEST_CASE("sum parts: parts beyond 2^31 elements are added in their place") {
  for_each_host_variant([](Device& device, DType model, Rng& rng) {
    if (model != DType::f32) return;  // of the parts, every device takes both
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Index width : {64, 21})
        for (const Index count : {3, 17}) {
          const Index stride = far / (count - 1) + 64;
          UntouchedMemory memory(device, ((count - 1) * stride + width) * static_cast<Index>(size_of(dtype)));
          const auto near = Operand::normal(device, rng, {count, width}, "parts", 1, dtype);
          const Tensor parts = memory.view(dtype, 0, {count, width}, {stride, 1}, "parts");
          copy_values(parts, near);
          const Operand want(device, DType::f32, {width}, "want"), apart(device, DType::f32, {width}, "sum");
          const Tensor sum = dtype == DType::f32 ? parts.select(0, count - 1) : apart.tensor();
          device.run(SumParts{want, near});
          device.run(SumParts{sum, parts});
          CHECK(same_values(sum, want));
        }
  });
}

TEST_CASE("swiglu: rows beyond 2^31 elements are those of their own row") {
  for_each_host_variant([](Device& device, DType dtype, Rng& rng) {
    const Index N = 3, stride = far / 2 + 64;
    for (const Index F : {64, 21}) {
      UntouchedMemory memory(device, (N * stride + (1 << 12)) * static_cast<Index>(size_of(dtype)));
      std::vector<Tensor> far_parts, near_parts;
      std::vector<Operand> near;
      for (const char* name : {"gate", "up", "dgate", "dup"}) {
        far_parts.push_back(
            memory.view(dtype, 256 * static_cast<Index>(near.size()), {N, F}, {stride, 1}, name));
        near.push_back(Operand::normal(device, rng, {N, F}, name, 1, dtype));
        copy_values(far_parts.back(), near.back());
      }
      const auto dout = Operand::normal(device, rng, {N, F}, "dout", 1, dtype);
      const Operand out(device, dtype, {N, F}, "out"), want(device, dtype, {N, F}, "want");
      device.run(SwigluForward{out, far_parts[0], far_parts[1]});
      device.run(SwigluForward{want, near[0], near[1]});
      CHECK(same_values(out, want));
      device.run(SwigluBackward{far_parts[2], far_parts[3], dout, far_parts[0], far_parts[1]});
      device.run(SwigluBackward{near[2], near[3], dout, near[0], near[1]});
      CHECK(same_values(far_parts[2], near[2]));
      CHECK(same_values(far_parts[3], near[3]));
    }
  });
}

TEST_CASE("forget bias and attention: key biases of sequences and heads beyond 2^31 elements") {
  for_each_host_variant([](Device& device, DType dtype, Rng& rng) {
    if (dtype != DType::f32) return;
    const Index B = 2, H = 2;
    for (const auto& stride : {std::vector<Index>{far + 64, 4096, 1}, {8192, far + 64, 1}})
      for (const Index length : {5, 300}) {  // 300: the decode form, too
        INFO("strides " << stride[0] << " " << stride[1] << ", T " << length);
        const auto memory = reserved(device, (far + (1 << 15)) * static_cast<Index>(sizeof(double)));
        if (!memory) continue;
        const Tensor key_bias = memory->view(DType::f64, 0, {B, H, length}, stride, "key_bias");
        const Operand near(device, DType::f64, {B, H, length}, "key_bias");
        const auto gate = Operand::normal(device, rng, {B, length, H}, "gate");
        device.run(ForgetBiasForward{near, gate, 0});
        device.run(ForgetBiasForward{key_bias, gate, 0});
        CHECK(same_values(key_bias, near));

        for (const Index t_q : {Index{2}, length}) {
          const AttentionProblem problem =
              random_attention({B, t_q, length, H, 8, 8, 0, true, false, dtype, 1, true}, rng);
          DeviceAttention with_near(device, problem, 8, 0, dtype), with_far(device, problem, 8, 0, dtype);
          AttentionForward want = with_near.forward_operation(), op = with_far.forward_operation();
          AttentionBackward want_back = with_near.backward_operation(), back = with_far.backward_operation();
          want.key_bias = want_back.key_bias = near;
          op.key_bias = back.key_bias = key_bias;
          device.run(want);
          device.run(op);
          CHECK(same_values(op.out, want.out));
          device.run(want_back);
          device.run(back);
          CHECK(same_values(back.dq, want_back.dq));
          CHECK(same_values(back.dk, want_back.dk));
        }
      }
  });
}

TEST_CASE("attention, rope and prior lanes: sequences, rows and heads beyond 2^31 elements") {
  for_each_host_variant([](Device& device, DType dtype, Rng& rng) {
    for (const auto& stride : far_strides())
      for (const Index head_dim : {64, 36})
        for (const Index t_k : {3, 259}) {  // 259: the decode form, whose keys are not far from each other
          if (t_k > 3 && stride[1] > (1 << 15)) continue;
          const Index B = 2, T = 3, H = 2, R = 2, content = head_dim - 2 * R - 2;
          INFO("strides " << stride[0] << " " << stride[1] << " " << stride[2] << ", d_h " << head_dim
                          << ", T_k " << t_k);
          const AttentionShape shape{B, T, t_k, H, head_dim, content, 2 * R, true, true, dtype};
          const AttentionProblem problem = random_attention(shape, rng);
          DeviceAttention near(device, problem, content, 2 * R, dtype),
              others(device, problem, content, 2 * R, dtype);
          AttentionBackward want = near.backward_operation(), op = others.backward_operation();
          AttentionForward want_forward = near.forward_operation(), forward = others.forward_operation();

          const Index extent = (B - 1) * stride[0] + (t_k - 1) * stride[1] + (H - 1) * stride[2] + (1 << 12);
          UntouchedMemory memory(device, extent * static_cast<Index>(size_of(dtype)));
          Index place = 0;
          for (Tensor* operand : {&op.q, &op.k, &op.v, &op.dq, &op.dk, &op.dv}) {
            const Index rows = operand->shape[1];
            const Tensor moved = memory.view(dtype, place, {B, rows, H, head_dim}, stride, operand->name);
            if (place < 3 * 256) copy_values(moved, *operand);
            *operand = moved;
            place += 256;
          }
          forward.q = op.q;
          forward.k = op.k;
          forward.v = op.v;
          device.run(forward);
          device.run(want_forward);
          CHECK(same_values(op.out, want.out));
          device.run(op);
          device.run(want);
          CHECK(same_values(op.dq, want.dq));
          CHECK(same_values(op.dk, want.dk));
          CHECK(same_values(op.dv, want.dv));

          const auto table = Operand::normal(device, rng, {t_k, head_dim / 2, 2}, "table"),
                     alpha = Operand::normal(device, rng, {H, R}, "alpha"),
                     beta = Operand::normal(device, rng, {H, R}, "beta"),
                     key_bias = Operand::normal(device, rng, {H, t_k}, "key_bias"),
                     fourier = Operand::normal(device, rng, {t_k, R, 2}, "fourier");
          for (const AttentionBackward* which : {&op, &want}) {
            device.run(Rope{which->k, which->v, table, 0, false});
            PriorLanesForward lanes;
            lanes.q = which->k;
            lanes.k = which->v;
            lanes.alpha = alpha;
            lanes.beta = beta;
            lanes.key_bias = key_bias;
            lanes.fourier = fourier;
            lanes.content_dim = content;
            lanes.scale = 0.5f;
            device.run(lanes);
          }
          CHECK(same_values(op.k, want.k));
          CHECK(same_values(op.v, want.v));
        }
  });
}
