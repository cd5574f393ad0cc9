#include "worker/model/llama.h"

#include "worker/model/rotary.h"

namespace rubato::worker {

Result<std::unique_ptr<Model>> Llama::create(const ModelConfig& config, std::int64_t micro_batch,
                                             Device& device, bool has_backward) {
  std::unique_ptr<Llama> model(new Llama(config, micro_batch, device, has_backward));
  model->lay_out();
  TRY_OK(model->allocate_blocks());
  TRY_OK(model->upload_angles());
  return std::unique_ptr<Model>(std::move(model));
}

ParameterTable Llama::layout(const ModelConfig& config, Device& device) {
  Llama model(config, 1, device, false);
  model.lay_out();
  return std::move(model.table_);
}

Llama::Matrix Llama::put_matrix(std::int64_t in,
                                const std::vector<std::pair<std::string, std::int64_t>>& tensors) {
  Matrix matrix{.offset = table_.flat_count(), .in = in};
  for (const auto& [name, out] : tensors) {
    CHECK_EQ(table_.flat_count(), matrix.offset + matrix.out * in);  // no padding between them
    put(name, {out, in}, true);
    matrix.out += out;
  }
  return matrix;
}

void Llama::lay_out() {
  const std::int64_t c = config_.hidden;
  const std::int64_t kv = c / config_.heads * config_.kv_heads;
  const std::int64_t i = config_.mlp_hidden;
  token_table_ =
      put("model.embed_tokens.weight", {config_.vocabulary, c}, true, padded_vocabulary_);
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    BlockParameters p{};
    p.norm1 = put(prefix + "input_layernorm.weight", {c}, false);
    p.qkv = put_matrix(c, {{attention + "q_proj.weight", c},
                           {attention + "k_proj.weight", kv},
                           {attention + "v_proj.weight", kv}});
    p.out = put_matrix(c, {{attention + "o_proj.weight", c}});
    p.norm2 = put(prefix + "post_attention_layernorm.weight", {c}, false);
    p.gate_up = put_matrix(c, {{mlp + "gate_proj.weight", i}, {mlp + "up_proj.weight", i}});
    p.down = put_matrix(i, {{mlp + "down_proj.weight", c}});
    block_parameters_.push_back(p);
  }
  last_weight_ = put("model.norm.weight", {c}, false);
  head_ = config_.has_tied_head
              ? token_table_
              : put("lm_head.weight", {config_.vocabulary, c}, true, padded_vocabulary_);
}

Status Llama::allocate_blocks() {
  const std::int64_t n = micro_batch_ * config_.sequence_length;
  const std::int64_t c = config_.hidden;
  const std::int64_t i = config_.mlp_hidden;
  const AttentionShape shape = attention({micro_batch_, config_.sequence_length});
  blocks_.resize(static_cast<std::size_t>(config_.layers));
  for (Block& b : kept_blocks(blocks_)) {
    for (Buffer* x : {&b.input, &b.norm1, &b.attended, &b.middle, &b.norm2}) want(*x, n * c);
    for (Buffer* x : {&b.rstd1, &b.rstd2}) want(*x, n);
    want(b.qkv, n * shape.columns());
    want(b.scores, kernels_.attention_saved(shape));
    want(b.gate_up, n * 2 * i);
    want(b.gated, n * i);
  }
  want(angles_, config_.sequence_length * shape.head_size);
  want(last_rstd_, n);
  if (has_backward_) {
    want(grad_gate_up_, n * 2 * i);
    want(grad_gated_, n * i);
  }
  TRY_OK(allocate());
  share_block(blocks_);
  return ok();
}

Status Llama::upload_angles() {
  const std::vector<float> angles = rotary_angles(config_);
  const auto stream = device_.make_stream();
  device_.copy_to_device(*stream, angles_, angles.data());
  return stream->synchronize();
}

}  // namespace rubato::worker
