#include "worker/model/transformer.h"

#include "common/training_limits.h"
#include "common/words.h"
#include "worker/backend/digest.h"
#include "worker/model/scalar_math.h"

#include <algorithm>

namespace rubato::worker {

namespace {

constexpr std::int64_t kVocabularyGrain = 64;  // rows of the token table come in these

std::int64_t round_up(std::int64_t x, std::int64_t grain) {
  return (x + grain - 1) / grain * grain;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, std::int64_t micro_batch, Device& device,
                         bool has_backward)
    : config_(config),
      micro_batch_(micro_batch),
      padded_vocabulary_(round_up(config.vocabulary, kVocabularyGrain)),
      has_backward_(has_backward),
      device_(device),
      kernels_(device.kernels()),
      // A function of the shapes and the kind of device: the chunks are part of the arithmetic.
      head_rows_(std::min(
          std::max<std::int64_t>(kernels_.logits_at_a_time() / padded_vocabulary_ / 64 * 64, 64),
          micro_batch * config.sequence_length)) {}

std::size_t Transformer::put(std::string name, std::vector<std::int64_t> shape, bool decays,
                             std::int64_t padded_rows) {
  table_.add(std::move(name), std::move(shape), decays, padded_rows);
  return table_.entries().size() - 1;
}

void Transformer::want(Buffer& buffer, std::int64_t count, DType type) {
  wishes_.push_back({&buffer, type, count});
}

Status Transformer::allocate() {
  const std::int64_t n = micro_batch_ * config_.sequence_length;
  const AttentionShape shape = attention({micro_batch_, config_.sequence_length});
  want(inputs_, n, DType::kI32);
  want(targets_, n, DType::kI32);
  for (Buffer* x : {&last_input_, &last_norm_, &branch_}) want(*x, n * config_.hidden);
  want(losses_, n);
  want(logits_, head_rows_ * padded_vocabulary_);
  if (has_backward_) {
    for (Buffer* x : {&grad_stream_, &grad_norm_}) want(*x, n * config_.hidden);
    want(grad_qkv_, n * shape.columns());
    want(attention_workspace_, kernels_.attention_workspace(shape));
    want(embed_workspace_, kernels_.embed_workspace(n, config_.vocabulary), DType::kI32);
  }

  std::size_t bytes = 0;
  for (const Wish& wish : wishes_) bytes += Arena::bytes_for(wish.type, wish.count);
  TRY(arena_, device_.allocate(bytes));
  for (const Wish& wish : wishes_) *wish.buffer = arena_.take(wish.type, wish.count);
  wishes_.clear();
  host_inputs_.resize(static_cast<std::size_t>(n));
  host_targets_.resize(static_cast<std::size_t>(n));
  host_losses_.resize(static_cast<std::size_t>(n));
  return ok();
}

void Transformer::init_tensor(std::uint64_t seed, const Parameter& entry,
                              std::span<float> out) const {
  if (!entry.decays) {
    const bool is_of_norm = entry.name.ends_with(".weight");
    return std::fill(out.begin(), out.end(), is_of_norm ? 1.0f : 0.0f);
  }
  const double size = deviation(entry);
  const std::uint64_t key = Digest(seed).add(entry.name).value();
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(size * normal_of(key, i));
}

ConstBuffer Transformer::weight(ConstBuffer flat, std::size_t index) const {
  const Parameter& entry = table_.entries()[index];
  return flat.slice(entry.offset, entry.count);
}

Buffer Transformer::part(Buffer flat, std::size_t index) const {
  const Parameter& entry = table_.entries()[index];
  return flat.slice(entry.offset, entry.count);
}

AttentionShape Transformer::attention(const Pass& pass) const {
  return {pass.batch, pass.length, config_.heads, config_.hidden / config_.heads,
          config_.kv_heads > 0 ? config_.kv_heads : config_.heads};
}

Status Transformer::check_tokens(std::span<const std::int32_t> tokens, std::size_t wanted) const {
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
void Transformer::upload(Stream& stream, std::span<const std::int32_t> tokens) {
  const auto length = static_cast<std::size_t>(config_.sequence_length);
  for (std::size_t row = 0; row < static_cast<std::size_t>(micro_batch_); ++row) {
    const auto* from = tokens.data() + row * (length + 1);
    std::copy_n(from, length, host_inputs_.data() + row * length);
    std::copy_n(from + 1, length, host_targets_.data() + row * length);
  }
  device_.copy_to_device(stream, inputs_, host_inputs_.data());
  device_.copy_to_device(stream, targets_, host_targets_.data());
}

Result<MicroLoss> Transformer::read_loss(Stream& stream, const Pass& pass) {
  const std::int64_t rows = pass.rows();
  device_.copy_to_host(stream, host_losses_.data(), losses_.slice(0, rows));
  TRY_OK(stream.synchronize());
  double sum = 0.0;
  for (std::int64_t i = 0; i < rows; ++i)
    sum += static_cast<double>(host_losses_[static_cast<std::size_t>(i)]);
  return make_micro_loss(static_cast<float>(sum / static_cast<double>(rows)));
}

Result<MicroLoss> Transformer::forward_backward(Stream& stream,
                                                std::span<const std::int32_t> tokens,
                                                ConstBuffer parameters, Buffer gradient) {
  CHECK(has_backward_);
  const Pass pass{micro_batch_, config_.sequence_length};
  TRY_OK(check_tokens(tokens, static_cast<std::size_t>(micro_batch_ * (pass.length + 1))));
  CHECK_EQ(parameters.count(), table_.flat_count());
  CHECK_EQ(gradient.count(), table_.flat_count());
  upload(stream, tokens);
  forward(stream, pass, parameters);

  device_.memset(stream, gradient, 0);
  head(stream, pass, parameters, gradient);
  backward(stream, pass, parameters, gradient);
  return read_loss(stream, pass);
}

Result<MicroLoss> Transformer::evaluate(Stream& stream, std::span<const std::int32_t> tokens,
                                        ConstBuffer parameters) {
  const Pass pass{micro_batch_, config_.sequence_length};
  TRY_OK(check_tokens(tokens, static_cast<std::size_t>(micro_batch_ * (pass.length + 1))));
  upload(stream, tokens);
  forward(stream, pass, parameters);
  head(stream, pass, parameters, Buffer());
  return read_loss(stream, pass);
}

Status Transformer::read_sequence(Stream& stream, std::span<const std::int32_t> tokens,
                                  ConstBuffer parameters) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (length < 1 || length > config_.sequence_length)
    return Error(Code::kInvalid, counted(length, "token") + ", but the model takes 1.." +
                                     std::to_string(config_.sequence_length));
  TRY_OK(check_tokens(tokens, tokens.size()));
  device_.copy_to_device(stream, inputs_.slice(0, length), tokens.data());
  forward(stream, {1, length}, parameters);
  return ok();
}

Buffer Transformer::logits_of(Stream& stream, ConstBuffer parameters, std::int64_t first,
                              std::int64_t rows) {
  const Parameter& table = table_.entries()[head_];
  const Buffer some = logits_.slice(0, rows * padded_vocabulary_);
  kernels_.gemm(stream,
                {.m = rows, .n = padded_vocabulary_, .k = config_.hidden, .transpose_b = true},
                last_norm_.slice(first * config_.hidden, rows * config_.hidden),
                parameters.slice(table.offset, padded_vocabulary_ * config_.hidden), {}, some);
  return some;
}

Status Transformer::logits(Stream& stream, std::span<const std::int32_t> tokens,
                           ConstBuffer parameters, std::vector<float>& out) {
  TRY_OK(read_sequence(stream, tokens, parameters));
  const auto length = static_cast<std::int64_t>(tokens.size());
  const auto columns = static_cast<std::size_t>(padded_vocabulary_);
  const auto wanted = static_cast<std::size_t>(config_.vocabulary);
  out.resize(tokens.size() * wanted);
  std::vector<float> chunk;
  for (std::int64_t first = 0; first < length; first += head_rows_) {
    const std::int64_t rows = std::min(head_rows_, length - first);
    const Buffer some = logits_of(stream, parameters, first, rows);
    chunk.resize(static_cast<std::size_t>(rows) * columns);
    device_.copy_to_host(stream, chunk.data(), some);
    TRY_OK(stream.synchronize());
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
      std::copy_n(chunk.data() + r * columns, wanted,
                  out.data() + (static_cast<std::size_t>(first) + r) * wanted);
  }
  return ok();
}

// Its chunk is computed whole: a product of one row may have other bits.
Status Transformer::last_logits(Stream& stream, std::span<const std::int32_t> tokens,
                                ConstBuffer parameters, std::vector<float>& out) {
  TRY_OK(read_sequence(stream, tokens, parameters));
  const auto last = static_cast<std::int64_t>(tokens.size()) - 1;
  const std::int64_t row = last % head_rows_;
  const Buffer some = logits_of(stream, parameters, last - row, row + 1);
  out.resize(static_cast<std::size_t>(config_.vocabulary));
  device_.copy_to_host(stream, out.data(),
                       some.slice(row * padded_vocabulary_, config_.vocabulary));
  return stream.synchronize();
}

void Transformer::head(Stream& stream, const Pass& pass, ConstBuffer parameters, Buffer gradient) {
  const std::int64_t n = pass.rows();
  const std::int64_t c = config_.hidden;
  const std::int64_t v = padded_vocabulary_;
  const Parameter& table = table_.entries()[head_];
  const ConstBuffer classes = parameters.slice(table.offset, v * c);  // padding rows are zero
  const float scale = 1.0f / static_cast<float>(n);
  for (std::int64_t first = 0; first < n; first += head_rows_) {
    const std::int64_t rows = std::min(head_rows_, n - first);
    const Buffer x = last_norm_.slice(first * c, rows * c);
    const Buffer some = logits_.slice(0, rows * v);
    kernels_.gemm(stream, {.m = rows, .n = v, .k = c, .transpose_b = true}, x, classes, {}, some);
    kernels_.softmax_cross_entropy(stream, v, config_.vocabulary, scale, !gradient.is_empty(),
                                   targets_.slice(first, rows), some, losses_.slice(first, rows));
    if (gradient.is_empty()) continue;
    kernels_.gemm(stream, {.m = rows, .n = c, .k = v}, some, classes, {},
                  grad_norm_.slice(first * c, rows * c));
    kernels_.gemm(stream, {.m = v, .n = c, .k = rows, .transpose_a = true, .accumulate = first > 0},
                  some, x, {}, gradient.slice(table.offset, v * c));
  }
}

std::uint64_t Transformer::untouched_bytes() const {
  const auto shape = attention({micro_batch_, config_.sequence_length});
  const std::int64_t blocks = has_backward_ ? config_.layers : 1;
  return static_cast<std::uint64_t>(blocks * kernels_.attention_untouched(shape)) *
         size_of(DType::kF32);
}

double Transformer::flops_per_token() const {
  const auto c = static_cast<double>(config_.hidden);
  const double kv = c * static_cast<double>(config_.kv_heads) / static_cast<double>(config_.heads);
  const double block =
      config_.family == "llama"
          ? training::llama_block_weights(c, kv, static_cast<double>(config_.mlp_hidden))
          : training::gpt2_block_weights(c);
  return training::flops_per_token(static_cast<double>(config_.layers), block, c,
                                   static_cast<double>(config_.vocabulary),
                                   static_cast<double>(config_.sequence_length));
}

}  // namespace rubato::worker
