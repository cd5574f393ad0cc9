#include "tools/rubatoctl/local/data.h"

#include "common/dns_names.h"
#include "tools/rubatoctl/local/commands.h"

#include <filesystem>

#include <fmt/core.h>

namespace rubato::ctl {

namespace fs = std::filesystem;

namespace {

constexpr const char* kWholeBible = "gen1:1-rev22:21";

Status read_bible(Executor& executor, const std::string& output,
                  const std::function<bool()>& should_stop) {
  const Status read = run_program(executor, {"bible", "-f", kWholeBible}, output, should_stop);
  if (read.ok()) return ok();
  return Error(Code::kNotFound,
               read.error().what() +
                   "\n  What to do: apt-get install bible-kjv bible-kjv-text (`scripts/setup "
                   "build` does it)");
}

// Of the file, whose folder is made.
Result<std::string> made_place(const LocalCluster& cluster, const DataPlace& place) {
  TRY_OK(check_place(place));
  const std::string folder = cluster.claim_folder(place.ns, place.claim);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error(Code::kUnavailable, "cannot make " + folder + ": " + error.message());
  return folder + "/" + place.file;
}

}  // namespace

Status check_place(const DataPlace& place) {
  if (!is_dns_label(place.ns))
    return Error(Code::kInvalid, fmt::format("namespace \"{}\": {}", place.ns, kDnsLabelRule));
  if (!is_dns_subdomain(place.claim))
    return Error(Code::kInvalid, fmt::format("claim \"{}\": {}", place.claim, kDnsSubdomainRule));
  if (place.file.empty() || place.file.starts_with('.') ||
      place.file.find('/') != std::string::npos)
    return Error(Code::kInvalid,
                 fmt::format("file \"{}\": a name in the claim, without '/', and with no '.' "
                             "at its start",
                             place.file));
  return ok();
}

Result<std::uint64_t> put_texts(Executor& executor, const LocalCluster& cluster,
                                const std::vector<std::string>& texts, const DataPlace& place,
                                const std::function<bool()>& should_stop) {
  std::uint64_t bytes = 0;
  for (const std::string& text : texts) {
    std::error_code error;
    const std::uint64_t size = fs::file_size(text, error);
    if (error) return Error(Code::kNotFound, text + ": " + error.message());
    bytes += size;
  }
  TRY(const std::string path, made_place(cluster, place));
  std::vector<std::string> command = {program_folder() + "/rubato-tokenize", "--out", path};
  if (!place.tokenizer.empty()) command.insert(command.end(), {"--tokenizer", place.tokenizer});
  command.insert(command.end(), texts.begin(), texts.end());
  TRY_OK(run_program(executor, command, cluster.log_of("tokenize"), should_stop));
  return bytes;
}

Result<std::uint64_t> put_bible(Executor& executor, const LocalCluster& cluster,
                                const DataPlace& place, const std::function<bool()>& should_stop) {
  TRY_OK(check_place(place));
  const std::string book = cluster.log_of("kjv") + ".txt";
  TRY_OK(read_bible(executor, book, should_stop));
  return put_texts(executor, cluster, {book}, place, should_stop);
}

Result<std::uint64_t> put_plain_bible(Executor& executor, const LocalCluster& cluster,
                                      const DataPlace& place,
                                      const std::function<bool()>& should_stop) {
  TRY(const std::string path, made_place(cluster, place));
  TRY_OK(read_bible(executor, path, should_stop));
  return fs::file_size(path);
}

}  // namespace rubato::ctl
