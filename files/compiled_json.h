#pragma once
// nlohmann::json, compiled once: files/compiled_json.cpp holds what every user of the precompiled
// header would else compile for itself.

#include <nlohmann/json.hpp>

extern template class nlohmann::basic_json<>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
