#include "train/model/block.h"

#include <vector>

#include "kernels/prior_setup.h"

namespace goat {

void SharedBuffers::plan(const Config& config, BatchShape shape, bool training, MemoryPlan& memory) {
  const std::int64_t tokens = shape.tokens(), width = config.model.width, heads = config.model.heads,
                     length = shape.length;
  const auto add = [&](MemoryCategory category, const char* name, std::initializer_list<std::int64_t> extents,
                       Tensor& view) { memory.add(category, name, DType::f32, extents, view); };
  add(MemoryCategory::activations, "branch", {tokens, width}, branch);
  if (config.model.recompute == "gelu")
    add(MemoryCategory::activations, "gelu", {tokens, config.ff_width()}, gelu);
  if (training) {
    add(MemoryCategory::workspace, "dresidual", {tokens, width}, dresidual);
    add(MemoryCategory::workspace, "dnorm", {tokens, width}, dnorm);
    add(MemoryCategory::workspace, "dattention", {tokens, width}, dattention);
    add(MemoryCategory::workspace, "dhidden", {tokens, config.ff_width()}, dhidden);
    add(MemoryCategory::workspace, "dqkv", {shape.sequences, length, 3, heads, config.head_dim()}, dqkv);
    add(MemoryCategory::workspace, "delta", {shape.sequences, heads, length}, delta);
  }
  if (!config.has_prior()) return;

  const std::int64_t modes = config.prior.pos_rank, rows = shape.positions();
  memory.add(MemoryCategory::workspace, "positions", DType::i32, {rows, 1}, positions);
  memory.add(MemoryCategory::workspace, "frequency", DType::f64, {modes}, frequency);
  memory.add(MemoryCategory::workspace, "sink_frequency", DType::f64, {config.prior.abs_rank},
             sink_frequency);
  add(MemoryCategory::workspace, "fourier", {rows, modes, 2}, fourier);
  add(MemoryCategory::workspace, "sink_features", {rows, config.sink_features()}, sink_features);
  if (!training) return;
  add(MemoryCategory::workspace, "dq_lanes", {shape.sequences, heads, length, 2 * modes}, dq_lanes);
  if (config.prior.learned_frequencies)
    add(MemoryCategory::workspace, "dk_lanes", {shape.sequences, heads, length, 2 * modes}, dk_lanes);
  add(MemoryCategory::workspace, "dkey_bias", {shape.sequences, heads, length}, dkey_bias);
  add(MemoryCategory::workspace, "dkey_bias_sum", {heads, length}, dkey_bias_sum);
  add(MemoryCategory::workspace, "dslope", {shape.sequences, heads, length}, dslope);
  add(MemoryCategory::workspace, "dlambda", {heads}, dlambda);
}

void SharedBuffers::fill_tables(const Config& config, Device& device) const {
  if (!config.has_prior()) return;
  std::vector<std::int32_t> index(static_cast<std::size_t>(positions.shape[0]));
  for (std::size_t t = 0; t < index.size(); ++t) index[t] = static_cast<std::int32_t>(t);
  const std::vector<double> relative = fourier_frequencies(config.prior.pos_rank, config.prior.base);
  const std::vector<double> absolute = fourier_frequencies(config.prior.abs_rank, config.prior.abs_base);
  device.upload(positions.data, index.data(), positions.bytes());
  device.upload(frequency.data, relative.data(), frequency.bytes());
  device.upload(sink_frequency.data, absolute.data(), sink_frequency.bytes());
  device.run(FourierTable{.table = fourier, .frequency = frequency, .positions = positions});
  device.run(SinkFeatures{.features = sink_features,
                          .frequency = sink_frequency,
                          .positions = positions,
                          .train_length = config.data.seq_len});
}

LinearLayer::LinearLayer(const Config& config, const ParameterSet& parameters, const std::string& name)
    : weight(&parameters.at(name + ".weight")),
      bias(&parameters.at(name + ".bias")),
      tf32(config.model.tf32 == "all") {}

Tensor LinearLayer::matrix(const Tensor& packed) const {
  return packed.reshape({bias->value.elements(), packed.shape[packed.rank - 1]});
}

namespace {
// The activation [.., columns] as a matrix [rows, columns] for a linear layer.
Tensor rows_of(const Tensor& t, std::int64_t columns) { return t.reshape({t.elements() / columns, columns}); }
Tensor flat(const Tensor& t) { return t.reshape({t.elements()}); }
}  // namespace

void LinearLayer::forward(Device& device, const Tensor& out, const Tensor& x) const {
  const Tensor w = matrix(weight->value);
  device.run(LinearForward{.out = rows_of(out, w.shape[0]),
                           .x = rows_of(x, w.shape[1]),
                           .weight = w,
                           .bias = flat(bias->value),
                           .tf32 = tf32});
}

void LinearLayer::backward_input(Device& device, const Tensor& dx, const Tensor& dout) const {
  const Tensor w = matrix(weight->value);
  device.run(LinearBackwardInput{
      .dx = rows_of(dx, w.shape[1]), .dout = rows_of(dout, w.shape[0]), .weight = w, .tf32 = tf32});
}

void LinearLayer::backward_weight(Device& device, const Tensor& dout, const Tensor& x) const {
  const Tensor dw = matrix(weight->grad);
  device.run(LinearBackwardWeight{.dweight = dw,
                                  .dbias = flat(bias->grad),
                                  .dout = rows_of(dout, dw.shape[0]),
                                  .x = rows_of(x, dw.shape[1]),
                                  .tf32 = tf32});
}

NormLayer::NormLayer(const ParameterSet& parameters, const std::string& name)
    : weight(&parameters.at(name + ".weight")), bias(&parameters.at(name + ".bias")) {}

void NormLayer::plan(const std::string& name, std::int64_t tokens, MemoryPlan& memory) {
  memory.add(MemoryCategory::activations, name + ".mean", DType::f32, {tokens}, mean);
  memory.add(MemoryCategory::activations, name + ".rstd", DType::f32, {tokens}, rstd);
}

void NormLayer::forward(Device& device, const Tensor& out, const Tensor& sum, const Tensor& x,
                        const Tensor& residual) const {
  device.run(LayerNormForward{.out = out,
                              .mean = mean,
                              .rstd = rstd,
                              .sum = residual ? sum : Tensor{},
                              .x = x,
                              .residual = residual,
                              .weight = weight->value,
                              .bias = bias->value});
}

void NormLayer::backward(Device& device, const Tensor& dsum, const Tensor& dout, const Tensor& sum) const {
  device.run(LayerNormBackward{.dsum = dsum,
                               .dweight = weight->grad,
                               .dbias = bias->grad,
                               .dout = dout,
                               .sum = sum,
                               .mean = mean,
                               .rstd = rstd,
                               .weight = weight->value});
}

}  // namespace goat
