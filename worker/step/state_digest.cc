#include "worker/step/state_digest.h"

#include "worker/backend/digest.h"

#include <algorithm>
#include <vector>

namespace rubato::worker {

namespace {
constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

// In pieces of one size wherever they lie, for a digest depends on them.
Status add_range(Device& device, Stream& stream, ConstBuffer range, Digest& digest,
                 std::vector<std::byte>& staging) {
  for (std::int64_t first = 0; first < range.count(); first += kPieceElements) {
    const ConstBuffer piece = range.slice(first, std::min(kPieceElements, range.count() - first));
    const void* host = device.host_view(piece);
    if (host == nullptr) {
      staging.resize(piece.bytes());
      device.copy_to_host(stream, staging.data(), piece);
      TRY_OK(stream.synchronize());
      host = staging.data();
    }
    digest.add(host, piece.bytes());
  }
  return ok();
}
}  // namespace

Result<std::uint64_t> state_digest(Device& device, Stream& stream, std::span<const Buffer> sections,
                                   const StatePart& part, std::uint64_t seq, std::uint64_t step) {
  CHECK_LT(part.part, part.parts);
  TRY_OK(stream.synchronize());
  std::int64_t all = 0;
  for (const Buffer& section : sections) all += section.count();
  const std::int64_t begin = all * part.part / part.parts;
  const std::int64_t end = all * (part.part + 1) / part.parts;
  Digest digest;
  digest.add_u64(seq).add_u64(step).add_u64(static_cast<std::uint64_t>(begin));
  std::vector<std::byte> staging;  // only for devices whose memory the host cannot see
  std::int64_t at = 0;             // where the section begins
  for (const Buffer& section : sections) {
    const std::int64_t first = std::clamp<std::int64_t>(begin - at, 0, section.count());
    const std::int64_t last = std::clamp<std::int64_t>(end - at, 0, section.count());
    if (first < last)
      TRY_OK(add_range(device, stream, section.slice(first, last - first), digest, staging));
    at += section.count();
  }
  return std::max<std::uint64_t>(digest.value(), 1);
}

Result<std::uint64_t> state_digest(Replica& replica, std::uint32_t part, std::uint32_t parts,
                                   std::uint64_t seq) {
  return state_digest(replica.device(), replica.stream(), replica.sections(), {part, parts}, seq,
                      replica.step());
}

}  // namespace rubato::worker
