#include "worker/protocol/members.h"

#include "common/rng.h"

#include <map>
#include <string_view>
#include <tuple>

namespace rubato::wire {
namespace {

using Key = std::tuple<std::string_view, std::uint32_t, std::uint64_t>;

Key key_of(const Member& member) {
  return {member.id().pod_uid(), member.id().slot(), member.id().incarnation()};
}

// FNV-1a of words, each mixed: not against forgers, who would have to be the coordinator.
class Digest {
 public:
  void add(std::uint64_t word) { value_ = mix64(value_ ^ word) * 0x100000001b3; }
  void add(std::string_view text) {
    add(text.size());
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  std::uint64_t value() const { return mix64(value_); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace

std::uint64_t digest_of(const Members& members) {
  Digest digest;
  digest.add(static_cast<std::uint64_t>(members.size()));
  for (const Member& member : members) {
    digest.add(member.id().pod_uid());
    digest.add(member.id().slot());
    digest.add(member.id().incarnation());
    digest.add(member.address().host());
    digest.add(member.address().port());
  }
  return digest.value();
}

bool name_change(Form& form, std::uint64_t base, const Members& known) {
  std::map<Key, std::uint32_t> ranks;
  for (int rank = 0; rank < known.size(); ++rank)
    ranks.emplace(key_of(known[rank]), static_cast<std::uint32_t>(rank));
  int kept = 0;
  google::protobuf::RepeatedPtrField<Range> ranges;
  for (; kept < form.members_size(); ++kept) {
    const auto rank = ranks.find(key_of(form.members(kept)));
    if (rank == ranks.end()) break;
    const bool goes_on = !ranges.empty() && ranges.rbegin()->end() == rank->second;
    const bool is_ahead = ranges.empty() || ranges.rbegin()->end() < rank->second;
    if (!goes_on && !is_ahead) break;
    if (is_ahead) ranges.Add()->set_begin(rank->second);
    ranges.rbegin()->set_end(rank->second + 1);
  }
  if (kept == 0) return false;
  form.set_members_of(base);
  form.set_members_digest(digest_of(form.members()));
  *form.mutable_kept() = std::move(ranges);
  form.mutable_members()->DeleteSubrange(0, kept);
  form.clear_shares();
  return true;
}

bool name_all(Form& form, std::uint64_t base, const Members& known) {
  if (base == 0 || form.members_of() != base) return false;
  Members all;
  std::uint32_t from = 0;
  for (const Range& range : form.kept()) {
    const bool fits = range.begin() >= from && range.begin() < range.end() &&
                      range.end() <= static_cast<std::uint32_t>(known.size());
    if (!fits) return false;
    for (from = range.begin(); from < range.end(); ++from)
      *all.Add() = known[static_cast<int>(from)];
  }
  for (const Member& member : form.members()) *all.Add() = member;
  if (digest_of(all) != form.members_digest()) return false;
  *form.mutable_members() = std::move(all);
  form.clear_kept();
  form.clear_members_of();
  form.clear_members_digest();
  return true;
}

}  // namespace rubato::wire
