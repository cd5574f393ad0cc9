#include "worker/model/gpt2.h"

#include "worker/model/scalar_math.h"

namespace rubato::worker {

Result<std::unique_ptr<Model>> Gpt2::create(const ModelConfig& config, std::int64_t micro_batch,
                                            Device& device, bool has_backward) {
  std::unique_ptr<Gpt2> model(new Gpt2(config, micro_batch, device, has_backward));
  model->lay_out();
  TRY_OK(model->allocate_blocks());
  return std::unique_ptr<Model>(std::move(model));
}

ParameterTable Gpt2::layout(const ModelConfig& config, Device& device) {
  Gpt2 model(config, 1, device, false);
  model.lay_out();
  return std::move(model.table_);
}

void Gpt2::lay_out() {
  const std::int64_t c = config_.hidden;
  token_table_ = put("transformer.wte.weight", {config_.vocabulary, c}, true, padded_vocabulary_);
  head_ = token_table_;
  position_table_ = put("transformer.wpe.weight", {config_.sequence_length, c}, true);
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    const std::string prefix = "transformer.h." + std::to_string(layer) + ".";
    BlockParameters p{};
    p.norm1_weight = put(prefix + "ln_1.weight", {c}, false);
    p.norm1_bias = put(prefix + "ln_1.bias", {c}, false);
    p.qkv_weight = put(prefix + "attn.c_attn.weight", {c, 3 * c}, true);
    p.qkv_bias = put(prefix + "attn.c_attn.bias", {3 * c}, false);
    p.out_weight = put(prefix + "attn.c_proj.weight", {c, c}, true);
    p.out_bias = put(prefix + "attn.c_proj.bias", {c}, false);
    p.norm2_weight = put(prefix + "ln_2.weight", {c}, false);
    p.norm2_bias = put(prefix + "ln_2.bias", {c}, false);
    p.up_weight = put(prefix + "mlp.c_fc.weight", {c, 4 * c}, true);
    p.up_bias = put(prefix + "mlp.c_fc.bias", {4 * c}, false);
    p.down_weight = put(prefix + "mlp.c_proj.weight", {4 * c, c}, true);
    p.down_bias = put(prefix + "mlp.c_proj.bias", {c}, false);
    block_parameters_.push_back(p);
  }
  last_weight_ = put("transformer.ln_f.weight", {c}, false);
  last_bias_ = put("transformer.ln_f.bias", {c}, false);
}

Status Gpt2::allocate_blocks() {
  const std::int64_t n = micro_batch_ * config_.sequence_length;
  const std::int64_t c = config_.hidden;
  blocks_.resize(static_cast<std::size_t>(config_.layers));
  for (Block& b : kept_blocks(blocks_)) {
    for (Buffer* x : {&b.input, &b.norm1, &b.attended, &b.middle, &b.norm2}) want(*x, n * c);
    for (Buffer* x : {&b.mean1, &b.rstd1, &b.mean2, &b.rstd2}) want(*x, n);
    want(b.qkv, n * 3 * c);
    want(b.scores, kernels_.attention_saved(attention({micro_batch_, config_.sequence_length})));
    want(b.hidden, n * 4 * c);
    want(b.gelu, n * 4 * c);
  }
  for (Buffer* x : {&last_mean_, &last_rstd_}) want(*x, n);
  if (has_backward_) want(grad_hidden_, n * 4 * c);
  TRY_OK(allocate());
  share_block(blocks_);
  return ok();
}

double Gpt2::deviation(const Parameter& entry) const {
  if (!entry.name.ends_with("c_proj.weight")) return 0.02;
  return 0.02 * (1.0 / sqrt_of(2.0 * static_cast<double>(config_.layers)));
}

}  // namespace rubato::worker
