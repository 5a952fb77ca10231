#include "train/model/generator.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "train/memory/float_copies.h"

namespace goat {

Generator::Generator(const Config& config, const ParameterSet& parameters, Device& device,
                     std::vector<std::int32_t> prompt, std::int64_t new_tokens, bool use_cache)
    : device_(device),
      tokens_(std::move(prompt)),
      prompt_length_(tokens_.size()),
      capacity_(tokens_.size() + static_cast<std::size_t>(new_tokens)) {
  if (tokens_.empty()) throw std::invalid_argument("Generator: the prompt has no tokens");
  const auto capacity = static_cast<std::int64_t>(capacity_),
             length = static_cast<std::int64_t>(tokens_.size());
  if (use_cache) {
    cache_ = std::make_unique<KvCache>(config, parameters.dtype(), capacity, memory_);
    prompt_ = std::make_unique<Model>(config, device.info(), BatchShape{1, length}, false, parameters,
                                      memory_, cache_.get());
    token_ = std::make_unique<Model>(config, device.info(), BatchShape{1, 1}, false, parameters, memory_,
                                     cache_.get());
  } else {
    all_ =
        std::make_unique<Model>(config, device.info(), BatchShape{1, capacity}, false, parameters, memory_);
  }
  plan_workspace();
  memory_.allocate(device, [] { return "Give a smaller --tokens or a shorter --prompt"; });
  const WorkspaceScope scope(device_, workspace_memory(workspace_));
  for (Model* model : {prompt_.get(), token_.get(), all_.get()})
    if (model) model->bind(device);
}

// The pass over one token needs most where the cache is full.
void Generator::plan_workspace() {
  memory_.add_workspace(
      device_,
      [this](Device& survey) {
        for (Model* model : {prompt_.get(), token_.get(), all_.get()}) {
          if (!model) continue;
          if (cache_) cache_->length = model == token_.get() ? cache_->capacity - 1 : 0;
          model->bind(survey);
          model->next_logits(survey, 0);
        }
      },
      workspace_);
  if (cache_) cache_->length = 0;
}

std::span<const float> Generator::next_logits() {
  if (std::exchange(restarted_, false)) return prompt_logits_;
  const WorkspaceScope scope(device_, workspace_memory(workspace_));
  const bool after_prompt = tokens_.size() == prompt_length_;
  const Tensor logits = cache_ ? run_new_tokens() : run_all_tokens();
  std::vector<float>& result = after_prompt ? prompt_logits_ : logits_;
  result.resize(static_cast<std::size_t>(logits.elements()));
  download_floats(device_, result, logits);
  return result;
}

void Generator::restart() {
  tokens_.resize(prompt_length_);
  restarted_ = !prompt_logits_.empty();
  if (cache_ && restarted_) cache_->length = static_cast<std::int64_t>(prompt_length_);
}

Tensor Generator::run_new_tokens() {
  const auto done = static_cast<std::size_t>(cache_->length),
             length = static_cast<std::size_t>(prompt_->shape().length);
  if (done + (done == 0 ? length : 1) != tokens_.size())
    throw std::logic_error("Generator: with the cache, one token follows each next_logits()");
  Model& model = done == 0 ? *prompt_ : *token_;
  model.load(device_, {tokens_.begin() + cache_->length, tokens_.end()});
  return model.next_logits(device_, model.shape().length - 1);
}

// Rows after the last token hold token 0. They do not affect earlier rows, because attention is causal.
Tensor Generator::run_all_tokens() {
  std::vector<std::int32_t> padded = tokens_;
  padded.resize(capacity_, 0);
  all_->load(device_, padded);
  return all_->next_logits(device_, static_cast<std::int64_t>(tokens_.size()) - 1);
}

}  // namespace goat
