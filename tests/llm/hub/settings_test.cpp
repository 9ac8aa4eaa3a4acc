#include "llm/hub/settings.h"

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace llm::hub {
namespace {

using sherd::test::expect_error;
using sherd::test::TempFolder;

HubSettings settings_of(const std::map<std::string, std::string>& variables) {
  return hub_settings([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(HubSettings, AreHuggingFacesByDefault) {
  const HubSettings settings = settings_of({{"HOME", "/home/me"}});
  EXPECT_EQ(settings.endpoint, "https://huggingface.co");
  EXPECT_EQ(settings.cache, "/home/me/.cache/huggingface/hub");
  EXPECT_EQ(settings.token, "");
  EXPECT_FALSE(settings.offline);
}

TEST(HubSettings, TheCacheIsWhereTheNearestVariableSays) {
  std::map<std::string, std::string> variables = {{"HOME", "/home/me"}};
  variables["XDG_CACHE_HOME"] = "/caches";
  EXPECT_EQ(settings_of(variables).cache, "/caches/huggingface/hub");
  variables["HF_HOME"] = "~/hf";
  EXPECT_EQ(settings_of(variables).cache, "/home/me/hf/hub");
  variables["HF_HUB_CACHE"] = "/disk";
  EXPECT_EQ(settings_of(variables).cache, "/disk");
}

TEST(HubSettings, TheTokenIsTheVariablesElseTheFiles) {
  const TempFolder folder;
  folder.write("token", "of_home\n");
  std::map<std::string, std::string> variables = {{"HF_HOME", folder.path().string()}};
  EXPECT_EQ(token_of(settings_of(variables)), "of_home");
  variables["HF_TOKEN_PATH"] = folder.write("other", "of_path").string();
  EXPECT_EQ(token_of(settings_of(variables)), "of_path");
  variables["HF_TOKEN"] = " of_variable\n";
  EXPECT_EQ(token_of(settings_of(variables)), "of_variable");
}

TEST(HubSettings, TheTokensFileIsReadWhereATokenIsWanted) {
  const HubSettings settings = settings_of({{"HF_HOME", "/x"}, {"HF_TOKEN_PATH", "/dev/null"}});
  expect_error([&] { static_cast<void>(token_of(settings)); }, sherd::ExitCode::BadData,
               {"/dev/null"});
  EXPECT_EQ(token_of(settings_of({{"HF_HUB_CACHE", "/no/such"}})), "");
}

TEST(HubSettings, OfflineIsAnyWordForYes) {
  for (const char* const yes : {"1", "true", "YES", "On"}) {
    EXPECT_TRUE(settings_of({{"HF_HOME", "/x"}, {"HF_HUB_OFFLINE", yes}}).offline) << yes;
  }
  for (const char* const no : {"", "0", "false"}) {
    EXPECT_FALSE(settings_of({{"HF_HOME", "/x"}, {"HF_HUB_OFFLINE", no}}).offline) << no;
  }
}

TEST(HubSettings, SayWhoCouldReadAlong) {
  const auto is_open = [](const std::string& endpoint) {
    return settings_of({{"HF_HOME", "/x"}, {"HF_ENDPOINT", endpoint}}).is_open_to_others;
  };
  EXPECT_FALSE(is_open(""));
  EXPECT_FALSE(is_open("http://127.0.0.1:5000"));
  EXPECT_TRUE(is_open("http://mirror.example"));
}

TEST(HubSettings, ShowTheEndpointWithoutItsPassword) {
  const HubSettings settings =
      settings_of({{"HF_HOME", "/x"}, {"HF_ENDPOINT", "https://me:canary@mirror.example/hub/"}});
  EXPECT_EQ(shown_place(settings), "https://mirror.example/hub");
  EXPECT_EQ(shown_place(settings, "/x?canary"), "https://mirror.example/hub/x");
  EXPECT_EQ(shown_place(settings_of({{"HF_HOME", "/x"}})), "https://huggingface.co");
  try {
    settings_of({{"HF_HOME", "/x"}, {"HF_ENDPOINT", "http://me:can/ary@host"}});
    FAIL() << "no error";
  } catch (const sherd::Error& error) {
    EXPECT_EQ(error.code(), sherd::ExitCode::Usage);
    EXPECT_STREQ(
        error.what(),
        "HF_ENDPOINT: 'http://host' is not the URL of a server: give one like https://host/path");
  }
}

TEST(HubSettings, NeedAPlaceAndTrimTheEndpoint) {
  EXPECT_EQ(settings_of({{"HF_HUB_CACHE", "/disk"}}).cache, "/disk");  // is place enough

  expect_error([] { settings_of({}); }, sherd::ExitCode::Usage, {"set HF_HOME or HF_HUB_CACHE"});
  EXPECT_EQ(settings_of({{"HF_HOME", "/x"}, {"HF_ENDPOINT", "https://mirror.example//"}}).endpoint,
            "https://mirror.example");
}

}  // namespace
}  // namespace llm::hub
