// Which resource a word on the command line, or a manifest, means.
#pragma once

#include "kube/rest_client.h"

#include <functional>
#include <string>
#include <vector>

namespace rubato::ctl {

// "tj", "trainingjobs", "trainingjob.rubato.dev", "pod" … ; other words are looked up at the
// server. kNotFound lists what there is; kInvalid: it is empty, or a list of kinds. A group that
// does not answer is an error only where no other has the word.
Result<kube::ResourceType> resource_named(kube::RestClient& client, const std::string& word);
// The same where `read` gives the server's answer to a GET of a path.
using ReadPath = std::function<Result<std::string>(const std::string& path)>;
Result<kube::ResourceType> resource_named(const ReadPath& read, const std::string& word);
// Of a manifest. The server is asked, so that CRDs of others work as well.
Result<kube::ResourceType> resource_of_kind(kube::RestClient& client,
                                            const std::string& api_version,
                                            const std::string& kind);
// "trainingjob.rubato.dev/x", as kubectl names an object.
std::string display_name(const kube::ResourceType& type, const std::string& name);

}  // namespace rubato::ctl
