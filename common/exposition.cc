#include "common/exposition.h"

#include "common/check.h"

#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace rubato {
namespace {

// Help escapes backslash and line feed; the value of a label also the quotation mark.
void append_escaped(std::string& text, std::string_view value, bool in_quotes) {
  for (const char c : value) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '"' && in_quotes) {
      text += "\\\"";
    } else {
      text += c;
    }
  }
}

void append_number(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "NaN";
  } else if (std::isinf(value)) {
    text += value > 0 ? "+Inf" : "-Inf";
  } else {
    fmt::format_to(std::back_inserter(text), "{}", value);  // the shortest that reads back equal
  }
}

}  // namespace

std::string_view name_of(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

void Exposition::family(const MetricInfo& info) {
  family_ = &info;
  text_ += "# HELP ";
  text_ += info.name;
  text_ += ' ';
  append_escaped(text_, info.help, false);
  text_ += "\n# TYPE ";
  text_ += info.name;
  text_ += ' ';
  text_ += name_of(info.type);
  text_ += '\n';
}

void Exposition::sample(std::initializer_list<std::string_view> label_values, double value) {
  CHECK(family_ != nullptr && label_values.size() == family_->labels.size());
  text_ += family_->name;
  char before = '{';
  const std::string_view* label = family_->labels.data();
  for (const std::string_view given : label_values) {
    text_ += before;
    text_ += *label++;
    text_ += "=\"";
    append_escaped(text_, given, true);
    text_ += '"';
    before = ',';
  }
  text_ += before == '{' ? " " : "} ";
  append_number(text_, value);
  text_ += '\n';
  ++samples_;
}

}  // namespace rubato
