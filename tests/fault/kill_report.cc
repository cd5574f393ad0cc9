#include "tests/fault/kill_report.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

namespace rubato::fault {
namespace {

constexpr const char* kBegin = "<!-- kill matrix: written by `make kill-matrix` -->\n";
constexpr const char* kEnd = "<!-- end of the kill matrix -->\n";

const char* title_of(Scene scene) {
  switch (scene) {
    case Scene::kStep:
      return "a step";
    case Scene::kJoin:
      return "a join";
    case Scene::kLeave:
      return "a leave";
    case Scene::kRecover:
      return "a recovery (the last one's node died)";
    case Scene::kLevel:
      return "a recovery (the first one decided alone)";
    case Scene::kStart:
      return "the first generation";
    case Scene::kEnd:
      return "the last step";
    case Scene::kLeader:
      return "the coordinator is replaced as it strikes";
    case Scene::kPark:
      return "too few are left";
  }
  return "?";
}

// Who is hit where, and by which fault of a pair.
std::string row_of(const KillCase& one) {
  if (one.hits.empty()) return "nobody";
  std::string text;
  for (std::size_t i = is_of_recovery(one.scene) ? 1 : 0; i < one.hits.size(); ++i) {
    const Hit& hit = one.hits[i];
    if (!text.empty()) text += " + ";
    text += fmt::format("{} at `{}`", name_of(hit.role), hit.phase);
    if (is_of_disk(hit.fault)) text += hit.everywhere ? ", every disk" : ", its disk";
    if (hit.is_long) text += " for 8 s";
    if (i > 0 && is_of_disk(one.hits.front().fault))
      text += fmt::format(": {}", name_of(hit.fault));
  }
  return one.replace ? text + ", another takes over" : text;
}

std::string size_of(const KillCase& one) {
  if (one.micro_batches == kUsualMicroBatches) return std::to_string(one.world);
  return fmt::format("{}×{}", one.world, one.micro_batches);
}

std::string column_of(const KillCase& one) {
  if (one.hits.empty()) return "";
  const std::size_t first = is_of_recovery(one.scene) ? 1 : 0;
  std::string text = name_of(one.hits[first].fault);
  if (is_of_disk(one.hits[first].fault)) return text;  // the row says the others
  for (std::size_t i = first + 1; i < one.hits.size(); ++i)
    if (one.hits[i].fault != one.hits[first].fault)
      text += std::string("+") + name_of(one.hits[i].fault);
  return text;
}

}  // namespace

Findings read_findings(const std::string& file) {
  Findings findings;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    if (tab != std::string::npos) findings[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return findings;
}

void add_finding(const std::string& file, const std::string& name, const std::string& fault) {
  std::string line = fault;
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::ofstream(file, std::ios::app) << name << '\t' << line << '\n';
}

std::string table_of(const std::vector<KillCase>& cases, const Findings& findings) {
  std::vector<std::string> columns;
  for (const Fault fault : kFaults) columns.emplace_back(name_of(fault));
  std::vector<std::pair<std::string, std::map<std::string, std::string>>> rows;
  std::size_t equal = 0;
  std::size_t failed = 0;
  for (const KillCase& one : cases) {
    const auto found = findings.find(one.name());
    const bool is_run = found != findings.end();
    if (is_run) ++(found->second.empty() ? equal : failed);
    const std::string column = column_of(one);
    if (!column.empty() && std::ranges::find(columns, column) == columns.end())
      columns.push_back(column);
    const std::string title = fmt::format("{} | {}", title_of(one.scene), row_of(one));
    auto row = std::ranges::find_if(rows, [&](const auto& each) { return each.first == title; });
    if (row == rows.end()) row = rows.insert(row, {title, {}});
    std::string& cell = row->second[column.empty() ? columns.front() : column];
    if (!cell.empty()) cell += ' ';
    const std::string size = size_of(one);
    if (!is_run)
      cell += fmt::format("({})", size);
    else
      cell += fmt::format(fmt::runtime(found->second.empty() ? "{}" : "**✗{}**"), size);
  }
  std::string text =
      fmt::format("{} cases: {} equal, {} not, {} not run.\n\n| scene | who is hit |", cases.size(),
                  equal, failed, cases.size() - equal - failed);
  for (const std::string& column : columns) text += fmt::format(" {} |", column);
  text += "\n| --- | --- |";
  for (std::size_t i = 0; i < columns.size(); ++i) text += " --- |";
  text += '\n';
  for (const auto& [title, cells] : rows) {
    text += fmt::format("| {} |", title);
    for (const std::string& column : columns) {
      const auto cell = cells.find(column);
      text += cell == cells.end() ? " |" : fmt::format(" {} |", cell->second);
    }
    text += '\n';
  }
  return text;
}

Status write_page(const std::string& page, const std::string& table) {
  std::ifstream in(page);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t begin = text.find(kBegin);
  const std::size_t end = text.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    return Error(Code::kNotFound, page + " has no marks for the kill matrix");
  std::ofstream(page) << text.substr(0, begin) << kBegin << table << text.substr(end);
  return ok();
}

}  // namespace rubato::fault
