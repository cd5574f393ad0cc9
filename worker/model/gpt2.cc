#include "worker/model/gpt2.h"

#include "common/training_limits.h"
#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/model/scalar_math.h"

#include <algorithm>

namespace rubato::worker {

namespace {

constexpr std::int64_t kVocabularyGrain = 64;         // rows of the token table come in these
constexpr std::int64_t kLogitsElementsMax = 1 << 24;  // 64 MiB of logits at a time

std::int64_t round_up(std::int64_t x, std::int64_t grain) {
  return (x + grain - 1) / grain * grain;
}

}  // namespace

Result<std::unique_ptr<Model>> make_model(const ModelConfig& config, std::int64_t micro_batch,
                                          Device& device) {
  TRY_OK(config.validate());
  if (micro_batch < 1 || micro_batch > training::kMicroBatchMost)
    return Error(Code::kInvalid, "a micro-batch of " + counted(micro_batch, "sample") +
                                     ": must lie in 1.." +
                                     std::to_string(training::kMicroBatchMost));
  return Gpt2::create(config, micro_batch, device);
}

Result<std::unique_ptr<Model>> Gpt2::create(const ModelConfig& config, std::int64_t micro_batch,
                                            Device& device) {
  const std::int64_t head_size = config.hidden / config.heads;
  if (const std::int64_t most = device.kernels().attention_head_size_max(); head_size > most)
    return Error(Code::kInvalid, "heads of " + std::to_string(head_size) +
                                     " elements: " + device.name() + " computes with " +
                                     std::to_string(most) + " at most (hidden / heads)");
  std::unique_ptr<Gpt2> model(new Gpt2(config, micro_batch, device));
  model->lay_out();
  TRY_OK(model->allocate());
  return std::unique_ptr<Model>(std::move(model));
}

Gpt2::Gpt2(const ModelConfig& config, std::int64_t micro_batch, Device& device)
    : config_(config),
      micro_batch_(micro_batch),
      padded_vocabulary_(round_up(config.vocabulary, kVocabularyGrain)),
      // A function of the shapes alone: the chunks are part of the arithmetic.
      head_rows_(
          std::min(std::max<std::int64_t>(kLogitsElementsMax / padded_vocabulary_ / 64 * 64, 64),
                   micro_batch * config.sequence_length)),
      device_(device),
      kernels_(device.kernels()) {}

void Gpt2::lay_out() {
  const std::int64_t c = config_.hidden;
  const auto put = [&](std::string name, std::vector<std::int64_t> shape, bool decays,
                       std::int64_t padded_rows = 0) {
    table_.add(std::move(name), std::move(shape), decays, padded_rows);
    return table_.entries().size() - 1;
  };
  token_table_ = put("transformer.wte.weight", {config_.vocabulary, c}, true, padded_vocabulary_);
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

Status Gpt2::allocate() {
  const std::int64_t n = micro_batch_ * config_.sequence_length;
  const std::int64_t c = config_.hidden;
  const AttentionShape shape = attention({micro_batch_, config_.sequence_length});
  blocks_.resize(static_cast<std::size_t>(config_.layers));

  // Every buffer once: first to measure, then to take.
  struct Wish {
    Buffer* buffer;
    DType type;
    std::int64_t count;
  };
  std::vector<Wish> wishes;
  const auto want = [&](Buffer& buffer, std::int64_t count, DType type = DType::kF32) {
    wishes.push_back({&buffer, type, count});
  };
  for (Block& b : blocks_) {
    for (Buffer* x : {&b.input, &b.norm1, &b.attended, &b.middle, &b.norm2}) want(*x, n * c);
    for (Buffer* x : {&b.mean1, &b.rstd1, &b.mean2, &b.rstd2}) want(*x, n);
    want(b.qkv, n * 3 * c);
    want(b.scores, kernels_.attention_saved(shape));
    want(b.hidden, n * 4 * c);
    want(b.gelu, n * 4 * c);
  }
  want(inputs_, n, DType::kI32);
  want(targets_, n, DType::kI32);
  for (Buffer* x : {&last_input_, &last_norm_, &branch_, &grad_stream_, &grad_norm_})
    want(*x, n * c);
  for (Buffer* x : {&last_mean_, &last_rstd_, &losses_}) want(*x, n);
  want(logits_, head_rows_ * padded_vocabulary_);
  want(grad_qkv_, n * 3 * c);
  want(grad_hidden_, n * 4 * c);
  want(attention_workspace_, kernels_.attention_workspace(shape));
  want(embed_workspace_, kernels_.embed_workspace(n, config_.vocabulary), DType::kI32);

  std::size_t bytes = 0;
  for (const Wish& wish : wishes) bytes += Arena::bytes_for(wish.type, wish.count);
  TRY(arena_, device_.allocate(bytes));
  for (const Wish& wish : wishes) *wish.buffer = arena_.take(wish.type, wish.count);
  host_inputs_.resize(static_cast<std::size_t>(n));
  host_targets_.resize(static_cast<std::size_t>(n));
  host_losses_.resize(static_cast<std::size_t>(n));
  return ok();
}

void Gpt2::init(std::uint64_t seed, std::span<float> parameters) const {
  CHECK_EQ(static_cast<std::int64_t>(parameters.size()), table_.flat_count());
  std::fill(parameters.begin(), parameters.end(), 0.0f);
  const double residual = 1.0 / sqrt_of(2.0 * static_cast<double>(config_.layers));
  for (const Parameter& entry : table_.entries()) {
    const auto out = parameters.subspan(static_cast<std::size_t>(entry.offset),
                                        static_cast<std::size_t>(entry.count));
    if (!entry.decays) {
      if (entry.name.ends_with(".weight")) std::fill(out.begin(), out.end(), 1.0f);  // layernorm
      continue;
    }
    const double deviation = 0.02 * (entry.name.ends_with("c_proj.weight") ? residual : 1.0);
    const std::uint64_t key = Digest(seed).add(entry.name).value();
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>(deviation * normal_of(key, i));
  }
}

ConstBuffer Gpt2::weight(ConstBuffer flat, std::size_t index) const {
  const Parameter& entry = table_.entries()[index];
  return flat.slice(entry.offset, entry.count);
}

Buffer Gpt2::part(Buffer flat, std::size_t index) const {
  const Parameter& entry = table_.entries()[index];
  return flat.slice(entry.offset, entry.count);
}

AttentionShape Gpt2::attention(const Pass& pass) const {
  return {pass.batch, pass.length, config_.heads, config_.hidden / config_.heads};
}

Status Gpt2::check_tokens(std::span<const std::int32_t> tokens, std::size_t wanted) const {
  if (tokens.size() != wanted)
    return Error(Code::kInvalid, "a micro-batch of " + counted(tokens.size(), "token") + " where " +
                                     std::to_string(wanted) +
                                     std::string(agreeing(wanted, " belongs", " belong")));
  for (const std::int32_t token : tokens)
    if (token < 0 || token >= config_.vocabulary)
      return Error(Code::kInvalid, "token " + std::to_string(token) +
                                       " is outside the vocabulary of " +
                                       std::to_string(config_.vocabulary));
  return ok();
}

// Rows of length + 1 tokens become inputs and, one place on, targets.
void Gpt2::upload(Stream& stream, std::span<const std::int32_t> tokens) {
  const auto length = static_cast<std::size_t>(config_.sequence_length);
  for (std::size_t row = 0; row < static_cast<std::size_t>(micro_batch_); ++row) {
    const auto* from = tokens.data() + row * (length + 1);
    std::copy_n(from, length, host_inputs_.data() + row * length);
    std::copy_n(from + 1, length, host_targets_.data() + row * length);
  }
  device_.copy_to_device(stream, inputs_, host_inputs_.data());
  device_.copy_to_device(stream, targets_, host_targets_.data());
}

Result<MicroLoss> Gpt2::read_loss(Stream& stream, const Pass& pass) {
  const std::int64_t rows = pass.rows();
  device_.copy_to_host(stream, host_losses_.data(), losses_.slice(0, rows));
  TRY_OK(stream.synchronize());
  double sum = 0.0;
  for (std::int64_t i = 0; i < rows; ++i)
    sum += static_cast<double>(host_losses_[static_cast<std::size_t>(i)]);
  return make_micro_loss(static_cast<float>(sum / static_cast<double>(rows)));
}

Result<MicroLoss> Gpt2::forward_backward(Stream& stream, std::span<const std::int32_t> tokens,
                                         ConstBuffer parameters, Buffer gradient) {
  const Pass pass{micro_batch_, config_.sequence_length};
  TRY_OK(check_tokens(tokens, static_cast<std::size_t>(micro_batch_ * (pass.length + 1))));
  CHECK_EQ(parameters.count(), table_.flat_count());
  CHECK_EQ(gradient.count(), table_.flat_count());
  upload(stream, tokens);
  forward(stream, pass, parameters);

  device_.memset(stream, gradient, 0);
  head(stream, pass, parameters, gradient);
  device_.memset(stream, grad_stream_, 0);
  kernels_.layernorm_backward(stream, config_.hidden, last_input_, weight(parameters, last_weight_),
                              last_mean_, last_rstd_, grad_norm_, grad_stream_,
                              part(gradient, last_weight_), part(gradient, last_bias_));
  for (std::size_t layer = blocks_.size(); layer-- > 0;)
    block_backward(stream, pass, parameters, gradient, layer);
  kernels_.embed_backward(stream, pass.length, config_.hidden, config_.vocabulary, inputs_,
                          grad_stream_, embed_workspace_, part(gradient, token_table_),
                          part(gradient, position_table_));
  return read_loss(stream, pass);
}

Result<MicroLoss> Gpt2::evaluate(Stream& stream, std::span<const std::int32_t> tokens,
                                 ConstBuffer parameters) {
  const Pass pass{micro_batch_, config_.sequence_length};
  TRY_OK(check_tokens(tokens, static_cast<std::size_t>(micro_batch_ * (pass.length + 1))));
  upload(stream, tokens);
  forward(stream, pass, parameters);
  head(stream, pass, parameters, Buffer());
  return read_loss(stream, pass);
}

Status Gpt2::logits(Stream& stream, std::span<const std::int32_t> tokens, ConstBuffer parameters,
                    std::vector<float>& out) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (length < 1 || length > config_.sequence_length)
    return Error(Code::kInvalid, counted(length, "token") + ", but the model takes 1.." +
                                     std::to_string(config_.sequence_length));
  TRY_OK(check_tokens(tokens, tokens.size()));
  const Pass pass{1, length};
  device_.copy_to_device(stream, inputs_.slice(0, length), tokens.data());
  forward(stream, pass, parameters);

  const auto columns = static_cast<std::size_t>(padded_vocabulary_);
  const auto wanted = static_cast<std::size_t>(config_.vocabulary);
  out.resize(tokens.size() * wanted);
  const Parameter& table = table_.entries()[token_table_];
  std::vector<float> chunk;
  for (std::int64_t first = 0; first < length; first += head_rows_) {
    const std::int64_t rows = std::min(head_rows_, length - first);
    const Buffer some = logits_.slice(0, rows * padded_vocabulary_);
    kernels_.gemm(stream,
                  {.m = rows, .n = padded_vocabulary_, .k = config_.hidden, .transpose_b = true},
                  last_norm_.slice(first * config_.hidden, rows * config_.hidden),
                  parameters.slice(table.offset, padded_vocabulary_ * config_.hidden), {}, some);
    chunk.resize(static_cast<std::size_t>(rows) * columns);
    device_.copy_to_host(stream, chunk.data(), some);
    TRY_OK(stream.synchronize());
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
      std::copy_n(chunk.data() + r * columns, wanted,
                  out.data() + (static_cast<std::size_t>(first) + r) * wanted);
  }
  return ok();
}

double Gpt2::flops_per_token() const {
  return training::flops_per_token(
      static_cast<double>(config_.layers), static_cast<double>(config_.hidden),
      static_cast<double>(config_.vocabulary), static_cast<double>(config_.sequence_length));
}

}  // namespace rubato::worker
