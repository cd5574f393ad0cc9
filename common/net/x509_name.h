// Private to common/net.
#pragma once

#include <string>

struct x509_st;  // OpenSSL's X509

namespace rubato::net {

// The first DNS name among the alternative names; empty: there is none.
std::string first_dns_name(const x509_st* certificate);

}  // namespace rubato::net
