// Which fields a selector may name for a kind, and their values. Pure functions.
#pragma once

#include "apiserver/memory/api_error.h"
#include "apiserver/memory/resource.h"
#include "kube/selector.h"

namespace rubato::kube {

// Parses both selectors of a list or watch; 400 for a field the kind does not offer.
Answer<Selector> parse_field_selector(const ResourceInfo& info, const std::string& text);
Answer<Selector> parse_label_selector(const std::string& text);

// Against an object in storage form.
bool matches_field_selector(const Selector& selector, const json::Value& object);

}  // namespace rubato::kube
