#include "worker/data/megatron_index.h"

#include "common/words.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

namespace rubato::worker {

namespace {

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kHeaderBytes = 34;
constexpr std::size_t kPieceSequences = 1u << 16;

// Bytes of a token of that type; 0: not read (int8, int16, int64 and floating-point numbers).
int width_of(std::uint8_t type) {
  switch (type) {
    case 1:  // uint8
      return 1;
    case 8:  // uint16
      return 2;
    case 4:  // int32
      return 4;
    default:
      return 0;
  }
}

template <class T>
T number_at(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace

std::string megatron_index_of(const std::string& tokens) {
  constexpr std::string_view kEnd = ".bin";
  return tokens.ends_with(kEnd) ? tokens.substr(0, tokens.size() - kEnd.size()) + ".idx" : "";
}

Result<MegatronIndex> read_megatron_index(FileSystem& files, const std::string& path) {
  const auto invalid = [&](const std::string& why) {
    return Error(Code::kInvalid, path + " is not an index of Megatron: " + why);
  };
  TRY(const auto file, files.open(path, OpenMode::kRead));
  TRY(const std::uint64_t size, file->size());
  std::vector<std::byte> header(kHeaderBytes);
  TRY(const std::size_t got, file->read_at(0, header));
  if (got < kHeaderBytes ||
      std::memcmp(header.data(), kMegatronMagic.data(), kMegatronMagic.size()) != 0)
    return invalid("it has not its magic");
  if (const auto version = number_at<std::uint64_t>(&header[9]); version != 1)
    return invalid("version " + std::to_string(version));
  MegatronIndex index;
  const auto type = std::to_integer<std::uint8_t>(header[17]);
  index.width = width_of(type);
  if (index.width == 0)
    return invalid("tokens of type " + std::to_string(type) +
                   "; uint8 (1), int32 (4) and uint16 (8) are read");
  const auto sequences = number_at<std::uint64_t>(&header[18]);
  const auto documents = number_at<std::uint64_t>(&header[26]);
  const std::uint64_t body = size - kHeaderBytes;
  if (sequences > body / 12 || documents != (body - 12 * sequences) / 8 ||
      (body - 12 * sequences) % 8 != 0)
    return invalid(counted(size, "byte") + " for " + counted(sequences, "sequence") + " and " +
                   counted(documents, "document"));
  const auto width = static_cast<std::uint64_t>(index.width);
  std::vector<std::byte> lengths, places;
  for (std::uint64_t first = 0; first < sequences; first += kPieceSequences) {
    const std::size_t count = std::min<std::uint64_t>(kPieceSequences, sequences - first);
    lengths.resize(4 * count);
    places.resize(8 * count);
    TRY(const std::size_t a, file->read_at(kHeaderBytes + 4 * first, lengths));
    TRY(const std::size_t b, file->read_at(kHeaderBytes + 4 * sequences + 8 * first, places));
    if (a < lengths.size() || b < places.size()) return invalid("it was cut while it was read");
    for (std::size_t i = 0; i < count; ++i) {
      const auto length = number_at<std::int32_t>(&lengths[4 * i]);
      if (length < 0 || number_at<std::uint64_t>(&places[8 * i]) != index.tokens * width)
        return invalid("sequence " + std::to_string(first + i) +
                       " does not begin where the one before it ends");
      index.tokens += static_cast<std::uint64_t>(length);
    }
  }
  return index;
}

}  // namespace rubato::worker
