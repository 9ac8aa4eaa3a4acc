#pragma once
// URLs, parsed by libcurl, so that checks see the URL that it connects to.

#include <functional>
#include <optional>
#include <string>

namespace sherd::net {

/// Returns scheme, host and port, "https://host:443". Throws Error(Usage) for other than http(s).
[[nodiscard]] std::string origin_of(const std::string& url);

/// Resolves `location`, absolute or relative to `url`. Throws Error(Unavailable) if the result is
/// not an http or https URL, or leads from https to http.
[[nodiscard]] std::string redirected(const std::string& url, const std::string& location);

/// Returns the URL for messages: without user, password, query and fragment, which may be secret.
[[nodiscard]] std::string shown(const std::string& url);

/// Returns a server's text for a terminal: without control characters, at most a line or two.
[[nodiscard]] std::string printable(const std::string& text);

/// True if others could read what is sent there: http, unless it stays on this host. `variable`
/// looks up environment variables, for proxies.
[[nodiscard]] bool is_open_to_others(
    const std::string& url,
    const std::function<std::optional<std::string>(const std::string& name)>& variable);

/// Returns `text` percent-encoded, as one segment of a URL's path or a value in its query.
[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace sherd::net
