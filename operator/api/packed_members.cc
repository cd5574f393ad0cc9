#include "operator/api/packed_members.h"

#include "common/check.h"
#include "common/json.h"
#include "common/net/certificates.h"

#include <map>
#include <tuple>

#define ZLIB_CONST  // input that is const
#include <zlib.h>

namespace rubato::api {
namespace {

using json::Value;
constexpr std::size_t kChunk = 64U << 10U;

std::string deflated(const std::string& text) {
  uLongf size = compressBound(text.size());
  std::string out(size, '\0');
  const int done =
      compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                reinterpret_cast<const Bytef*>(text.data()), text.size(), Z_BEST_COMPRESSION);
  CHECK(done == Z_OK);
  out.resize(size);
  return out;
}

Result<std::string> inflated(const std::string& bytes) {
  z_stream stream{};
  CHECK(inflateInit(&stream) == Z_OK);
  stream.next_in = reinterpret_cast<const Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  int done = Z_OK;
  while (done == Z_OK && out.size() <= kUnpackedBytesMost) {
    const std::size_t before = out.size();
    out.resize(before + kChunk);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + before);
    stream.avail_out = kChunk;
    done = inflate(&stream, Z_NO_FLUSH);
    out.resize(before + kChunk - stream.avail_out);
  }
  inflateEnd(&stream);
  if (out.size() > kUnpackedBytesMost)
    return Error(Code::kInvalid,
                 "unfolds to more than " + std::to_string(kUnpackedBytesMost) + " bytes");
  if (done != Z_STREAM_END) return Error(Code::kInvalid, "is no whole zlib stream");
  return out;
}

Value to_row(const MembershipMember& m) {
  return Value::array({m.pod, m.pod_uid, m.node, m.slot, m.incarnation, m.gpu_type});
}

Result<MembershipMember> from_row(const Value& row) {
  if (row.size() != 6 || !row[0].is_string() || !row[3].is_int())
    return Error(Code::kInvalid, "holds a member that is no row of six");
  MembershipMember m;
  m.pod = row[0].string_or("");
  m.pod_uid = row[1].string_or("");
  m.node = row[2].string_or("");
  m.slot = static_cast<std::int32_t>(row[3].int_or(0));
  m.incarnation = row[4].int_or(0);
  m.gpu_type = row[5].string_or("");
  return m;
}

Result<Members> unpack_rows(const std::string& text) {
  TRY(const std::string bytes, net::base64_decode(text));
  TRY(const std::string rows, inflated(bytes));
  TRY(const Value packed, json::parse(rows));
  Members out;
  for (const Value& row : packed["members"].items()) {
    TRY(MembershipMember m, from_row(row));
    out.members.push_back(std::move(m));
  }
  for (const Value& row : packed["previous"].items()) {
    if (!row.is_int()) {
      TRY(MembershipMember m, from_row(row));
      out.previous.push_back(std::move(m));
      continue;
    }
    const auto rank = static_cast<std::size_t>(row.int_or(0));
    if (rank >= out.members.size()) return Error(Code::kInvalid, "names a rank that it has not");
    out.previous.push_back(out.members[rank]);
  }
  return out;
}

}  // namespace

std::string pack(const Members& members) {
  using Key = std::tuple<std::string, std::int32_t, std::int64_t>;
  const auto key_of = [](const MembershipMember& m) {
    return Key(m.pod_uid, m.slot, m.incarnation);
  };
  Value rows = Value::array();
  std::map<Key, std::size_t> ranks;
  for (const MembershipMember& m : members.members) {
    ranks.emplace(key_of(m), ranks.size());
    rows.push_back(to_row(m));
  }
  Value previous = Value::array();
  for (const MembershipMember& m : members.previous) {
    const auto known = ranks.find(key_of(m));
    if (known != ranks.end() && members.members[known->second] == m)
      previous.push_back(known->second);
    else
      previous.push_back(to_row(m));
  }
  return net::base64_encode(
      deflated(json::dump(Value::object({{"members", rows}, {"previous", previous}}))));
}

Result<Members> unpack(const std::string& text) {
  auto members = unpack_rows(text);
  if (!members.ok()) return Error(Code::kInvalid, "packed members: " + members.error().what());
  return members;
}

}  // namespace rubato::api
