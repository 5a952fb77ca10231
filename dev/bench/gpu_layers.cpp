// The other operations at the shapes of C4-125M (GPT-2 small, GOAT with R = 2, M = 8) and FineWeb-1B (R = 4,
// M = 8). Bytes are those of operation_work.h: every operand read once and written once.
#include <vector>

#include "dev/bench/gpu_bench.h"

namespace goat::bench {

namespace {
constexpr DType f32 = DType::f32, bf16 = DType::bf16;

struct Model {
  const char* name;
  std::int64_t batch, length, width, heads, hidden, modes;
  std::int64_t tokens() const { return batch * length; }
  std::int64_t head_dim() const { return width / heads; }
  std::int64_t content_dim() const { return head_dim() - 2 * modes - 2; }
};

Model c4_125m(const Bench& bench) {
  if (bench.tiny()) return {"c4_125m", 1, 64, 64, 2, 128, 2};
  return {"c4_125m", 16, 2048, 768, 12, 3072, 2};
}
Model fineweb_1b(const Bench& bench) {
  if (bench.tiny()) return {"fineweb_1b", 1, 64, 64, 2, 128, 4};
  return {"fineweb_1b", 8, 2048, 2048, 32, 5632, 4};
}

nlohmann::ordered_json facts_of(const Model& model) {
  return {{"model", model.name}, {"tokens", model.tokens()}};
}

// Outputs that an operation adds to start at zero: rounds of additions must not overflow.
void bench_embedding(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const std::int64_t vocab = bench.size(50304, 512), n = model.tokens(), c = model.width;
  const Tensor tokens = arena.integers({n}, static_cast<std::int32_t>(vocab), "tokens"),
               table = arena.tensor(bf16, {vocab, c}, "table"), rows = arena.tensor(bf16, {n, c}, "rows"),
               dtable = arena.zeros(f32, {vocab, c}, "dtable");
  bench.time("embedding_forward", EmbeddingForward{rows, tokens, table}, facts_of(model));
  bench.time("embedding_backward", EmbeddingBackward{dtable, rows, tokens}, facts_of(model));
}

void bench_layernorm(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const std::int64_t n = model.tokens(), c = model.width;
  const Tensor out = arena.tensor(bf16, {n, c}, "out"), x = arena.tensor(bf16, {n, c}, "x"),
               residual = arena.tensor(bf16, {n, c}, "residual"), sum = arena.tensor(bf16, {n, c}, "sum"),
               dsum = arena.zeros(bf16, {n, c}, "dsum"), mean = arena.tensor(f32, {n}, "mean"),
               rstd = arena.tensor(f32, {n}, "rstd"), weight = arena.tensor(f32, {c}, "weight"),
               bias = arena.tensor(f32, {c}, "bias"), dweight = arena.zeros(f32, {c}, "dweight"),
               dbias = arena.zeros(f32, {c}, "dbias");
  bench.time("layernorm_forward", LayerNormForward{out, mean, rstd, sum, x, residual, weight, bias},
             facts_of(model));
  bench.time("layernorm_backward", LayerNormBackward{dsum, dweight, dbias, out, sum, mean, rstd, weight},
             facts_of(model));
}

void bench_rmsnorm(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const std::int64_t n = model.tokens(), c = model.width;
  const Tensor out = arena.tensor(bf16, {n, c}, "out"), x = arena.tensor(bf16, {n, c}, "x"),
               residual = arena.tensor(bf16, {n, c}, "residual"), sum = arena.tensor(bf16, {n, c}, "sum"),
               dsum = arena.zeros(bf16, {n, c}, "dsum"), rstd = arena.tensor(f32, {n}, "rstd"),
               weight = arena.tensor(f32, {c}, "weight"), dweight = arena.zeros(f32, {c}, "dweight");
  bench.time("rmsnorm_forward", RmsNormForward{out, rstd, sum, x, residual, weight}, facts_of(model));
  bench.time("rmsnorm_backward", RmsNormBackward{dsum, dweight, out, sum, rstd, weight}, facts_of(model));
}

void bench_gelu(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const Tensor out = arena.tensor(bf16, {model.tokens(), model.hidden}, "out"),
               x = arena.tensor(bf16, {model.tokens(), model.hidden}, "x"),
               dx = arena.tensor(bf16, {model.tokens(), model.hidden}, "dx");
  bench.time("gelu_forward", GeluForward{out, x}, facts_of(model));
  bench.time("gelu_backward", GeluBackward{dx, out, x}, facts_of(model));
}

void bench_swiglu(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const std::int64_t n = model.tokens(), f = model.hidden;
  const Tensor out = arena.tensor(bf16, {n, f}, "out"), both = arena.tensor(bf16, {n, 2 * f}, "gate_up"),
               dboth = arena.tensor(bf16, {n, 2 * f}, "d");
  const Tensor gate = both.slice(1, 0, f), up = both.slice(1, f, f), dgate = dboth.slice(1, 0, f),
               dup = dboth.slice(1, f, f);
  bench.time("swiglu_forward", SwigluForward{out, gate, up}, facts_of(model));
  bench.time("swiglu_backward", SwigluBackward{dgate, dup, out, gate, up}, facts_of(model));
}

void bench_prior(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const std::int64_t b = model.batch, t = model.length, h = model.heads, r = model.modes, absolute = 8,
                     features = 2 * absolute + 2, units = 24;
  const Tensor qkv = arena.tensor(bf16, {b, t, 3, h, model.head_dim()}, "qkv"),
               positions = arena.integers({t, 1}, 0, "positions"),
               frequency = arena.zeros(DType::f64, {r}, "frequency"),
               sink_frequency = arena.zeros(DType::f64, {absolute}, "sink_frequency"),
               fourier = arena.tensor(f32, {t, r, 2}, "fourier"), alpha = arena.tensor(f32, {h, r}, "alpha"),
               beta = arena.tensor(f32, {h, r}, "beta"), key_bias = arena.tensor(f32, {h, t}, "key_bias"),
               phi = arena.tensor(f32, {t, features}, "features"),
               hidden = arena.tensor(f32, {t, units}, "hidden"),
               w1 = arena.tensor(f32, {units, features}, "w1"), b1 = arena.tensor(f32, {units}, "b1"),
               w2 = arena.tensor(f32, {h, units}, "w2"), bump = arena.tensor(f32, {h}, "bump"),
               slope = arena.tensor(f32, {h}, "slope"),
               dq_lanes = arena.tensor(f32, {b, h, t, 2 * r}, "dq_lanes"),
               dslope = arena.tensor(f32, {b, h, t}, "dslope"),
               dkey_bias = arena.tensor(f32, {b, h, t}, "dkey_bias"),
               workspace = arena.tensor(f32, {h, t}, "dkey_bias_sum"),
               dalpha = arena.zeros(f32, {h, r}, "dalpha"), dbeta = arena.zeros(f32, {h, r}, "dbeta"),
               dlambda = arena.zeros(f32, {h}, "dlambda"), dw1 = arena.zeros(f32, {units, features}, "dw1"),
               db1 = arena.zeros(f32, {units}, "db1"), dw2 = arena.zeros(f32, {h, units}, "dw2"),
               dbump = arena.zeros(f32, {h}, "dbump");
  const nlohmann::ordered_json facts = facts_of(model);
  bench.time("fourier_table", FourierTable{fourier, frequency, positions}, facts);
  bench.time("sink_features", SinkFeatures{phi, sink_frequency, positions, t}, facts);
  bench.time("sink_forward", SinkForward{key_bias, hidden, phi, w1, b1, w2, bump}, facts);
  bench.time("sink_backward", SinkBackward{dw1, db1, dw2, dbump, workspace, dkey_bias, hidden, phi, w2},
             facts);
  bench.time("prior_lanes_forward",
             PriorLanesForward{qkv.select(2, 0), qkv.select(2, 1), alpha, beta, key_bias, fourier,
                               model.content_dim(), 0, 0.125f},
             facts);
  PriorLanesBackward backward;
  backward.dalpha = dalpha, backward.dbeta = dbeta, backward.dlambda = dlambda;
  backward.dq_lanes = dq_lanes, backward.dslope = dslope;
  backward.alpha = alpha, backward.beta = beta, backward.fourier = fourier, backward.positions = positions;
  bench.time("prior_lanes_backward", backward, facts);
  bench.time("softplus_forward", SoftplusForward{bump, slope}, facts);
}

void bench_rope(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const Tensor qkv = arena.tensor(bf16, {model.batch, model.length, 3, model.heads, model.head_dim()}, "qkv"),
               fourier = arena.tensor(f32, {model.length, model.head_dim() / 2, 2}, "fourier");
  bench.time("rope", Rope{qkv.select(2, 0), qkv.select(2, 1), fourier}, facts_of(model));
}

void bench_classifier(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const std::int64_t n = model.tokens(), vocab = bench.size(50257, 500), padded = bench.size(50304, 512);
  const Tensor logits = arena.tensor(bf16, {n, padded}, "logits"), losses = arena.tensor(f32, {n}, "losses"),
               targets = arena.integers({n}, static_cast<std::int32_t>(vocab), "targets"),
               loss_sum = arena.zeros(DType::f64, {1}, "loss_sum");
  bench.time("cross_entropy",
             CrossEntropy{logits, losses, targets, {}, 1.0f / static_cast<float>(n), vocab, false},
             facts_of(model));
  bench.time("cross_entropy_backward",
             CrossEntropy{logits, losses, targets, {}, 1.0f / static_cast<float>(n), vocab, true},
             facts_of(model));
  bench.time("add_loss", AddLoss{loss_sum.as<double>(), losses, {}, 1e-6f}, facts_of(model));
}

// The MLP's GELU by kernels of its own and by the epilogues of cuBLASLt: up forward, down backward.
void bench_linear_gelu(Bench& bench, const Model& model) {
  Arena arena(bench.device());
  const std::int64_t n = model.tokens(), c = model.width, f = model.hidden;
  const Tensor x = arena.tensor(bf16, {n, c}, "x"), up = arena.tensor(bf16, {f, c}, "up"),
               down = arena.tensor(bf16, {c, f}, "down"), bias = arena.tensor(bf16, {f}, "bias"),
               projected = arena.tensor(bf16, {n, f}, "projected"), out = arena.tensor(bf16, {n, f}, "out");
  for (const Epilogue epilogue : {Epilogue::own, Epilogue::library}) {
    nlohmann::ordered_json facts = facts_of(model);
    facts["layer"] = epilogue == Epilogue::own ? "own" : "library";
    bench.time("linear_gelu_forward", LinearGeluForward{out, projected, x, up, bias, false, epilogue}, facts);
    bench.time("linear_gelu_backward_input",
               LinearGeluBackwardInput{out, x, down, projected, false, epilogue}, facts);
  }
}

struct Layer {
  const char* name;
  std::int64_t in, out;
  bool bias;
};

void time_layer(Bench& bench, const Model& model, const Layer& layer) {
  Arena arena(bench.device());
  const std::int64_t n = model.tokens();
  const Tensor x = arena.tensor(bf16, {n, layer.in}, "x"),
               weight = arena.tensor(bf16, {layer.out, layer.in}, "weight"),
               dweight = arena.zeros(f32, {layer.out, layer.in}, "dweight"),
               out = arena.tensor(bf16, {n, layer.out}, "out");
  Tensor bias, dbias;
  if (layer.bias)
    bias = arena.tensor(bf16, {layer.out}, "bias"), dbias = arena.zeros(f32, {layer.out}, "dbias");
  nlohmann::ordered_json facts = facts_of(model);
  facts["layer"] = std::string(layer.name) + " " + std::to_string(layer.in) + ">" + std::to_string(layer.out);
  bench.time("linear_forward", LinearForward{out, x, weight, bias}, facts);
  bench.time("linear_backward_input", LinearBackwardInput{x, out, weight}, facts);
  bench.time("linear_backward_weight", LinearBackwardWeight{dweight, dbias, out, x}, facts);
}
}  // namespace

void bench_gemm(Bench& bench) {
  const std::int64_t vocab = bench.size(50304, 512);
  const Model c4 = c4_125m(bench), large = fineweb_1b(bench);
  for (const Layer& layer : {Layer{"qkv", c4.width, 3 * c4.width, true},
                             Layer{"out", c4.width, c4.width, true}, Layer{"up", c4.width, c4.hidden, true},
                             Layer{"down", c4.hidden, c4.width, true}, Layer{"head", c4.width, vocab, false}})
    time_layer(bench, c4, layer);
  for (const Layer& layer :
       {Layer{"qkv", large.width, 3 * large.width, false}, Layer{"out", large.width, large.width, false},
        Layer{"gate_up", large.width, 2 * large.hidden, false},
        Layer{"down", large.hidden, large.width, false}, Layer{"head", large.width, vocab, false}})
    time_layer(bench, large, layer);
  for (const Model& model : {c4, large}) bench_linear_gelu(bench, model);
}

void bench_c4_layers(Bench& bench) {
  const Model model = c4_125m(bench);
  bench_embedding(bench, model);
  bench_layernorm(bench, model);
  bench_gelu(bench, model);
  bench_prior(bench, model);
  bench_classifier(bench, model);
}

void bench_1b_layers(Bench& bench) {
  const Model model = fineweb_1b(bench);
  bench_embedding(bench, model);
  bench_rmsnorm(bench, model);
  bench_swiglu(bench, model);
  bench_rope(bench, model);
  bench_prior(bench, model);
  bench_classifier(bench, model);
}

void bench_optimizer(Bench& bench) {
  Arena arena(bench.device());
  const std::int64_t n = bench.size(std::int64_t{1} << 27, 1 << 12);
  const Tensor param = arena.tensor(bf16, {n}, "param"), master = arena.tensor(f32, {n}, "master"),
               m = arena.zeros(f32, {n}, "m"), v = arena.zeros(f32, {n}, "v"),
               grad = arena.tensor(f32, {n}, "grad"), memory = arena.zeros(DType::i32, {64}, "state");
  auto* state = static_cast<StepState*>(memory.data);
  const nlohmann::ordered_json facts = {{"parameters", n}};
  const Tensor sums = arena.zeros(DType::f64, {(n + SquaredSums::chunk - 1) / SquaredSums::chunk}, "sums"),
               loss_sum = arena.zeros(DType::f64, {1, 1}, "loss_sum");
  const std::vector<ChunkSums> squares(8, ChunkSums{sums.reshape({1, sums.elements()}), 0});
  bench.time("squared_sums", SquaredSums{sums, grad}, facts);
  bench.time("step_verdict", StepVerdict{state, loss_sum, squares, 1.0f}, {{"parameters", 8 * n}});
  bench.time("adamw", AdamW{state, param, master, m, v, grad}, facts);
  AdamW stochastic{state, param, master, m, v, grad};
  stochastic.rounding = Rounding::stochastic;
  bench.time("adamw_stochastic", stochastic, facts);
}

// What memory gives at most: the line that the other rates are held against.
void bench_memory(Bench& bench) {
  Arena arena(bench.device());
  const std::int64_t n = bench.size(std::int64_t{1} << 29, 1 << 12);
  const Tensor from = arena.tensor(bf16, {n}, "from"), to = arena.tensor(bf16, {n}, "to");
  const nlohmann::ordered_json facts = {{"bytes", to.bytes()}};
  Device& device = bench.device();
  bench.time("device_copy", {0, 2.0 * static_cast<double>(to.bytes())}, facts,
             [&] { device.copy(to.data, from.data, to.bytes()); });
  bench.time("set_zero", {0, static_cast<double>(to.bytes())}, facts,
             [&] { device.set_zero(to.data, to.bytes()); });
  bench.time("fill", Fill{to, 1.0f}, facts);
  const Tensor wide = arena.tensor(f32, {n / 2}, "wide");
  bench.time("cast_f32_to_bf16", Cast{to.slice(0, 0, n / 2), wide}, facts);
}

}  // namespace goat::bench
