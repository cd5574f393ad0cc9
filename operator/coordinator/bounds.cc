#include "operator/coordinator/bounds.h"

#include "common/words.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

namespace rubato::coordinator {
namespace {

constexpr std::size_t kTextMax = 1024;             // bytes
constexpr std::uint64_t kCountMost = 1ull << 53;   // what JSON's numbers hold
constexpr std::uint64_t kSkippedMost = 1'000'000;  // checkpoints, by one process
constexpr double kSecondsMost = 1e6;
constexpr double kLossMost = 1e9;
constexpr double kTokensMost = 1e15;

double at_most(double value, double most) {
  return std::isfinite(value) ? std::clamp(value, -most, most) : 0;
}

using google::protobuf::io::CodedInputStream;

constexpr int kPartDepth = 2;  // what the message is about, and the fields of that

// The last three bits of a tag.
enum WireType : std::uint32_t { kVarint = 0, kEightBytes = 1, kLengthFirst = 2, kFourBytes = 5 };
constexpr std::uint32_t kWireTypeBits = 7;
constexpr int kWireTypeBitCount = 3;

bool skip(CodedInputStream& bytes, std::uint32_t wire_type) {
  std::uint64_t number = 0;
  std::uint32_t length = 0;
  switch (wire_type) {
    case kVarint:
      return bytes.ReadVarint64(&number);
    case kEightBytes:
      return bytes.Skip(8);
    case kLengthFirst:
      return bytes.ReadVarint32(&length) && bytes.Skip(static_cast<int>(length));
    case kFourBytes:
      return bytes.Skip(4);
    default:
      return false;  // groups: the protocol has none
  }
}

// What a message has inside, where `number` is one of its messages; null: it is none, or is a later
// build's, of which nothing is known but its length.
const google::protobuf::Descriptor* inside(const google::protobuf::Descriptor& of, int number) {
  const auto* field = of.FindFieldByNumber(number);
  return field == nullptr ? nullptr : field->message_type();
}

// Adds those that are there to `parts`. False: they are too many, or cannot be read.
bool counts_parts(CodedInputStream& bytes, const google::protobuf::Descriptor& of, int depth,
                  std::size_t& parts) {
  while (const std::uint32_t tag = bytes.ReadTag()) {
    if (++parts > kPartsMax) return false;
    const std::uint32_t wire_type = tag & kWireTypeBits;
    const auto* message = inside(of, static_cast<int>(tag >> kWireTypeBitCount));
    if (depth == 1 || wire_type != kLengthFirst || message == nullptr) {
      if (!skip(bytes, wire_type)) return false;
      continue;
    }
    std::uint32_t length = 0;
    if (!bytes.ReadVarint32(&length)) return false;
    const CodedInputStream::Limit outer = bytes.PushLimit(static_cast<int>(length));
    if (!counts_parts(bytes, *message, depth - 1, parts)) return false;
    bytes.PopLimit(outer);
  }
  return bytes.BytesUntilLimit() == 0;
}

}  // namespace

bool has_few_parts(std::string_view frame) {
  CodedInputStream bytes(reinterpret_cast<const std::uint8_t*>(frame.data()),
                         static_cast<int>(frame.size()));
  std::size_t parts = 0;
  return counts_parts(bytes, *wire::AgentMessage::descriptor(), kPartDepth, parts);
}

std::string bounded(std::string_view text) { return clipped(text, kTextMax); }

double bounded_seconds(double seconds) { return std::max(0.0, at_most(seconds, kSecondsMost)); }

wire::WorkerStanding bounded(const wire::WorkerStanding& said, std::uint32_t micro_batches) {
  wire::WorkerStanding status = said;
  status.set_loss(at_most(status.loss(), kLossMost));
  status.set_validation_loss(at_most(status.validation_loss(), kLossMost));
  status.set_step_seconds(bounded_seconds(status.step_seconds()));
  status.set_compute_seconds(bounded_seconds(status.compute_seconds()));
  status.set_noise_scale(std::max(0.0, at_most(status.noise_scale(), kTokensMost)));
  status.set_seq(std::min(status.seq(), kCountMost));
  status.set_step(std::min(status.step(), kCountMost));
  status.set_tokens(std::min(status.tokens(), kCountMost));
  status.set_checkpoint_step(std::min(status.checkpoint_step(), kCountMost));
  status.set_validation_step(std::min(status.validation_step(), kCountMost));
  status.set_checkpoints_skipped(std::min(status.checkpoints_skipped(), kSkippedMost));
  if (status.fingerprint().size() > kTextMax) status.clear_fingerprint();
  if (status.cpu().size() > kTextMax) status.clear_cpu();
  if (status.phase_name().size() > kTextMax) status.clear_phase_name();
  if (status.collective().size() > kTextMax) status.clear_collective();
  if (status.listen().host().size() > kTextMax) status.clear_listen();
  // Neither ranges that are apart nor members are more.
  const auto is_long = [&](int count) { return static_cast<std::uint32_t>(count) > micro_batches; };
  if (is_long(status.held_size())) status.clear_held();
  if (is_long(status.last().diverged_size())) status.mutable_last()->clear_diverged();
  status.DiscardUnknownFields();
  return wire::WorkerStanding(std::as_const(status));  // what is cleared keeps its storage
}

}  // namespace rubato::coordinator
