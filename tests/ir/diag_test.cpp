// Diagnostics: the rendered text is part of the interface.
#include <gtest/gtest.h>

#include "ir/diag.h"

namespace gacc {
namespace {

TEST(Diag, ShowsTheLineAndUnderlinesTheNarrowestText) {
  Diag diag("mnist.toml", "[model]\nactivation = \"rleu\"\n");
  diag.error(Kind::unknown_value, {.line = 2, .column = 14, .length = 6}, "unknown activation \"rleu\"{}",
             did_you_mean("rleu", {"relu", "gelu"}));
  EXPECT_EQ(diag.render(),
            "mnist.toml:2:14: error: unknown activation \"rleu\"; did you mean \"relu\"? [unknown-value]\n"
            "    2 | activation = \"rleu\"\n"
            "      |              ^~~~~~\n");
}

TEST(Diag, ReportsInFileOrderWithNotes) {
  Diag diag("m.toml", "a = 1\nb = 2\n");
  diag.error(Kind::conflict, {.line = 2, .column = 1}, "second")
      .note({.line = 1, .column = 5}, "because of this");
  diag.error(Kind::conflict, {.line = 1, .column = 1}, "first");
  const std::string text = diag.render();
  EXPECT_LT(text.find("first"), text.find("second"));
  EXPECT_LT(text.find("second"), text.find("m.toml:1:5: note: because of this"));
}

TEST(Diag, CaretStandsUnderItsCharacterAfterTabsAndUmlauts) {
  Diag diag("m.toml", "\tn\xC3\xA4me = x\n");
  diag.error(Kind::syntax, {.line = 1, .column = 10}, "here");
  EXPECT_NE(diag.render().find("\n      | \t       ^"), std::string::npos) << diag.render();
}

TEST(Diag, WhatNoTerminalShowsIsAQuestionMark) {
  Diag diag("m.toml", "\xC3\xA4 \x1B[31m\xFF\xE2\x82 x\n");
  diag.error(Kind::syntax, {.line = 1, .column = 13}, "\xC3\xA4\x80\x7F");
  EXPECT_EQ(diag.render(),
            "m.toml:1:13: error: \xC3\xA4?? [syntax]\n"
            "    1 | \xC3\xA4 ?[31m??? x\n"
            "      |            ^\n");
}

TEST(Diag, PlacesBeyondTheTextDoNotCrash) {
  Diag diag("m.toml", "x\n");
  diag.error(Kind::syntax, {.line = 99, .column = 99, .length = 99}, "far away");
  EXPECT_EQ(diag.render(), "m.toml:99:99: error: far away [syntax]\n");
}

TEST(Diag, HintsOnlyWhatIsNear) {
  EXPECT_EQ(nearest("featurs", {"features", "bias"}), "features");
  EXPECT_EQ(nearest("lr", {"type", "betas"}), "");
  EXPECT_EQ(nearest("adamW", {"adam", "adamw"}), "adamw");
  EXPECT_EQ(nearest("ReLU", {"gelu", "relu"}), "relu");
  EXPECT_EQ(nearest("accumlate", {"accumulate", "micro_batch"}), "accumulate");
}

}  // namespace
}  // namespace gacc
