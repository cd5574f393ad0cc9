#include "kube/rest_url.h"
#include "operator/api/crd.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/resources.h"
#include "tools/rubatoctl/view/text_table.h"

#include <algorithm>
#include <cstdio>

#include <fmt/core.h>

namespace rubato::ctl {

using json::Value;

namespace {

constexpr const char* kTables =
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;q=0.9";
constexpr auto kWatchPatience = 1h;

bool is_for_machines(const GetOptions& options) {
  return options.output == "yaml" || options.output == "json" || options.output == "name";
}

struct Query {
  kube::ResourceType type;
  std::string ns;
  std::string path;  // of the collection
};

Result<Query> query_of(Session& session, const GetOptions& options) {
  Query query;
  TRY(query.type, resource_named(session.rest(), options.resource));
  query.ns = options.all_namespaces || !query.type.namespaced ? "" : session.ns();
  query.path = kube::collection_path(query.type, query.ns);
  return query;
}

// The objects asked for: the named ones, or all of the collection.
Result<std::vector<Value>> objects_of(Session& session, const Query& query,
                                      const GetOptions& options) {
  std::vector<Value> objects;
  if (options.names.empty())
    return session.list(query.type, query.ns, {.label_selector = options.selector});
  for (const std::string& name : options.names) {
    auto object = session.client().get(query.type, {query.ns, name});
    if (!object.ok()) return advised(object.error());
    objects.push_back(std::move(object).value());
  }
  return objects;
}

// For machines: one object as it is, several as a List, as kubectl does.
Status print_objects(Session& session, const Query& query, const GetOptions& options) {
  TRY(const std::vector<Value> objects, objects_of(session, query, options));
  if (options.output == "name") {
    for (const Value& object : objects)
      fmt::print("{}\n", display_name(query.type, kube::name_of(object)));
    return ok();
  }
  Value out = Value::object({{"apiVersion", "v1"}, {"kind", "List"}, {"items", Value::array()}});
  if (options.names.size() == 1) {
    out = objects.front();
  } else {
    for (const Value& object : objects) out.at("items").push_back(object);
  }
  const std::string text = options.output == "yaml" ? api::to_yaml(out) : json::dump(out, 2) + "\n";
  std::fputs(text.c_str(), stdout);
  if (!text.ends_with('\n')) std::fputs("\n", stdout);
  return ok();
}

// Prints rows under a head that is printed once, with the widths of the first rows.
class RowPrinter {
 public:
  explicit RowPrinter(const GetOptions& options)
      : wide_(options.output == "wide"), with_namespace_(options.all_namespaces) {}
  // `table` may lack its columns (later events of a watch).
  void print(const Value& table) {
    if (table["columnDefinitions"].size() > 0) columns_ = table["columnDefinitions"];
    Value whole = table;
    whole.set("columnDefinitions", columns_);
    const TextTable text = from_server(whole, wide_, with_namespace_);
    if (text.rows.empty()) return;
    if (widths_.empty()) {
      widths_ = widths_of(text);
      fmt::print("{}\n", row_text(text.head, widths_));
    }
    for (const auto& row : text.rows) fmt::print("{}\n", row_text(row, widths_));
    std::fflush(stdout);
    has_rows_ = true;
  }
  bool has_rows() const { return has_rows_; }

 private:
  bool wide_;
  bool with_namespace_;
  Value columns_;
  Widths widths_;
  bool has_rows_ = false;
};

Fetch tables_of(Session& session) {
  return [&session](const std::string& path) -> Result<std::string> {
    auto body = session.rest().get_raw(path, kTables);
    if (!body.ok()) return advised(body.error());
    return body;
  };
}

// Prints each change until the server ends the stream for good.
Status follow(Session& session, const Query& query, const GetOptions& options, std::string version,
              RowPrinter& printer) {
  kube::Query parameters{{"watch", "1"}};
  if (!options.selector.empty()) parameters.emplace_back("labelSelector", options.selector);
  if (options.names.size() == 1)
    parameters.emplace_back("fieldSelector", "metadata.name=" + options.names[0]);
  while (true) {
    kube::Query now = parameters;
    now.emplace_back("resourceVersion", version);
    auto stream = session.rest().stream(query.path + kube::encode_query(now), kTables);
    if (!stream.ok()) return advised(stream.error());
    while (true) {
      const auto line = (*stream)->next(session.executor().now() + kWatchPatience);
      if (!line.ok()) break;  // ended in order, or cut: go on from the last version
      TRY(const Value event, json::parse(*line));
      if (event["type"].string_view_or("") == "ERROR")
        return Error(Code::kExpired, event["object"]["message"].string_or("the watch ended"));
      const Value& table = event["object"];
      const std::string seen = table["rows"][0]["object"]["metadata"]["resourceVersion"].string_or(
          table["metadata"]["resourceVersion"].string_or(""));
      if (!seen.empty()) version = seen;
      if (event["type"].string_view_or("") != "BOOKMARK") printer.print(table);
    }
  }
}

}  // namespace

Result<GetOptions> checked_options(GetOptions options) {
  if (const auto slash = options.resource.find('/'); slash != std::string::npos) {
    options.names.insert(options.names.begin(), options.resource.substr(slash + 1));
    options.resource.resize(slash);
  }
  const bool is_named = !options.names.empty();
  const char* why = nullptr;
  if (std::ranges::find(options.names, "") != options.names.end())
    why = "a name may not be empty";
  else if (options.all_namespaces && is_named)
    why = "an object of that name may be in any namespace: name its own with -n instead of -A";
  else if (!options.selector.empty() && is_named)
    why = "objects are chosen by their names or by -l, not by both";
  else if (options.watch && options.names.size() > 1)
    why = "-w follows one object or all of them: name one, or none";
  else if (options.watch && is_for_machines(options))
    why = "-w follows the table alone: leave -o away, or take -o wide";
  if (why != nullptr) return Error(Code::kInvalid, why);
  return options;
}

Result<std::string> read_table(const Fetch& fetch, const std::string& path,
                               const kube::ListOptions& options,
                               const std::function<void(const Value&)>& take) {
  kube::ListOptions page = options;
  page.limit = kPage;
  std::string version = "0";
  do {
    TRY(const std::string body, fetch(path + kube::encode_query(kube::list_query(page))));
    TRY(const Value table, json::parse(body));
    version = table["metadata"]["resourceVersion"].string_or("0");
    page.continue_token = table["metadata"]["continue"].string_or("");
    take(table);
  } while (!page.continue_token.empty());
  return version;
}

Status get(Session& session, const GetOptions& given) {
  TRY(const GetOptions options, checked_options(given));
  TRY(const Query query, query_of(session, options));
  if (is_for_machines(options)) return print_objects(session, query, options);
  const Fetch fetch = tables_of(session);
  RowPrinter printer(options);
  std::string version = "0";
  if (options.names.empty()) {
    TRY(version, read_table(fetch, query.path, {.label_selector = options.selector},
                            [&](const Value& table) { printer.print(table); }));
  }
  for (const std::string& name : options.names) {
    TRY(const std::string body, fetch(kube::object_path(query.type, {query.ns, name}, "")));
    TRY(const Value table, json::parse(body));
    version = table["rows"][0]["object"]["metadata"]["resourceVersion"].string_or(version);
    printer.print(table);
  }
  if (!printer.has_rows()) {
    fmt::print(stderr, "No {} found{}.\n", query.type.plural,
               query.ns.empty() ? "" : " in namespace " + query.ns);
  }
  if (!options.watch) return ok();
  return follow(session, query, options, version, printer);
}

}  // namespace rubato::ctl
