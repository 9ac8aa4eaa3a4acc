#pragma once
// URLs, taken apart by libcurl, so that what is checked is what it will connect to.

#include <functional>
#include <optional>
#include <string>

namespace sherd::net {

/// Scheme, host and port: "https://host:443". Throws Error(Usage) for what is no http or https URL.
[[nodiscard]] std::string origin_of(const std::string& url);

/// Where `location`, absolute or relative, leads from `url`. Throws Error(Unavailable) where that
/// is no http or https URL, or leads from https to http.
[[nodiscard]] std::string redirected(const std::string& url, const std::string& location);

/// The URL as it may be shown: without user, password, query and fragment, which may hold secrets.
[[nodiscard]] std::string shown(const std::string& url);

/// What a server said, fit for a terminal: without control characters, and not longer than a line
/// or two.
[[nodiscard]] std::string printable(const std::string& text);

/// Whether others can read along what is sent there: over http, unless it stays on this host.
/// `variable` looks up the environment's, for proxies.
[[nodiscard]] bool is_open_to_others(
    const std::string& url,
    const std::function<std::optional<std::string>(const std::string& name)>& variable);

/// `text` as one segment of a URL's path, or a value in its query: percent-encoded.
[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace sherd::net
