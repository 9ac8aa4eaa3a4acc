#!/usr/bin/env python3
"""Prints tests/data/goldens/squad-metric.jsonl: what the official SQuAD v1.1 evaluation gives for a table of answers.

    python3 scripts/make_squad_metric_cases.py > tests/data/goldens/squad-metric.jsonl

The functions follow evaluate-v1.1.py (Rajpurkar et al. 2016). One case a line, in ASCII JSON: `prediction`, `golds`,
`normalized` (of the prediction), `em`, `f1`.
"""
import collections
import json
import re
import string


def normalize_answer(s):
    def remove_articles(text):
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def white_space_fix(text):
        return " ".join(text.split())

    def remove_punc(text):
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(s.lower())))


def f1_score(prediction, ground_truth):
    prediction_tokens = normalize_answer(prediction).split()
    ground_truth_tokens = normalize_answer(ground_truth).split()
    common = collections.Counter(prediction_tokens) & collections.Counter(ground_truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


def exact_match_score(prediction, ground_truth):
    return normalize_answer(prediction) == normalize_answer(ground_truth)


CASES = [
    ("Denver Broncos", ["Denver Broncos"]),
    ("denver broncos", ["Denver Broncos"]),
    ("the Denver Broncos", ["Denver Broncos"]),
    ("The Broncos of Denver", ["Denver Broncos"]),
    ("Denver", ["Denver Broncos", "Broncos"]),
    ("Panthers", ["Denver Broncos", "Broncos"]),
    ("", ["Denver"]),
    ("Denver", [""]),
    ("", [""]),
    ("the", ["a"]),
    ("the", ["the dog"]),
    ("...", ["a"]),
    ("  Saint   Bernadette\tSoubirous\n", ["Saint Bernadette Soubirous"]),
    ("Saint Bernadette Soubirous.", ["Saint Bernadette Soubirous"]),
    ("\"Saint\" (Bernadette) Soubirous!?", ["Saint Bernadette Soubirous"]),
    ("Soubirous Bernadette Saint", ["Saint Bernadette Soubirous"]),
    ("a a b", ["a b b"]),
    ("x x y", ["x y y"]),
    ("x x x", ["x"]),
    ("x", ["x x x"]),
    ("1,000", ["1000"]),
    ("$1.5 million", ["1.5 million"]),
    ("3.5%", ["3.5 percent"]),
    ("well-known", ["well known"]),
    ("well-known", ["wellknown"]),
    ("don't", ["dont"]),
    ("don\u2019t", ["dont"]),
    ("an apple a day", ["apple day"]),
    ("another theory", ["other ory"]),
    ("THE AN A", ["an"]),
    ("A. Lincoln", ["Lincoln"]),
    ("a_b the_c", ["ab thec"]),
    ("the\u2013end", ["end"]),
    ("a\u2014b", ["\u2014b"]),
    ("\u201cthe\u201d end", ["\u201c \u201d end"]),
    ("the\u00a0end", ["end"]),
    ("new\u00a0york\u2003city\u3000now", ["new york city now"]),
    ("one\x1ctwo\x1dthree\x1efour\x1ffive", ["one two three four five"]),
    ("one\x85two\u2028three\u2029four", ["one two three four"]),
    ("zero\u200bwidth", ["zero width"]),
    ("th\u00e9 \u00e0", ["th\u00c9 \u00c0"]),
    ("\u00c9cole \u00c0 \u00d1and\u00fa", ["\u00e9cole \u00e0 \u00f1and\u00fa"]),
    ("\u00c5ngstr\u00f6m", ["\u00e5ngstr\u00f6m"]),
    ("\u0152UVRE \u0141\u00d3D\u0179", ["\u0153uvre \u0142\u00f3d\u017a"]),
    ("\u0391\u0398\u0397\u039d\u0391", ["\u03b1\u03b8\u03b7\u03bd\u03b1"]),
    ("\u039f\u0394\u039f\u03a3", ["\u03bf\u03b4\u03bf\u03c2"]),
    ("\u03a3\u03a3 \u03a3", ["\u03c3\u03c2 \u03c3"]),
    ("\u041c\u043e\u0441\u043a\u0412\u0410 \u0401\u0416", ["\u043c\u043e\u0441\u043a\u0432\u0430 \u0451\u0436"]),
    ("\u0130stanbul", ["istanbul"]),
    ("\u0130stanbul", ["i\u0307stanbul"]),
    ("STRASSE", ["stra\u00dfe"]),
    ("\u1e9e", ["\u00df"]),
    ("\u01c5", ["\u01c6"]),
    ("\u2167 \u24b6", ["\u2177 \u24d0"]),
    ("\U00010400", ["\U00010428"]),
    ("\u5317\u4eac a \u4e0a\u6d77", ["\u5317\u4eac \u4e0a\u6d77"]),
    ("\u5317\u4eaca", ["\u5317\u4eac"]),
    ("\u3002the\u3002", ["\u3002 \u3002"]),
    ("\u0645\u0631\u062d\u0628\u0627 the", ["\u0645\u0631\u062d\u0628\u0627"]),
    ("\u00bd the \u00b2", ["\u00bd \u00b2"]),
    ("a\u00b2", ["\u00b2"]),
    ("\U0001f999 a \U0001f999", ["\U0001f999 \U0001f999"]),
    ("a\U0001f999", ["\U0001f999"]),
    ("cafe\u0301", ["cafe"]),
    ("a\u0301 b", ["\u0301 b"]),
    ("\ufffd the", ["\ufffd"]),
    ("nul\x00the\x00", ["nul\x00 \x00"]),
    ("10\u00b0C", ["10\u00b0c"]),
    ("the quick brown fox", ["a quick fox", "brown", "quick brown dog"]),
    ("solar heating, photovoltaics and more", ["solar heating, photovoltaics, solar thermal energy"]),
]


def main():
    for prediction, golds in CASES:
        print(json.dumps({
            "prediction": prediction,
            "golds": golds,
            "normalized": normalize_answer(prediction),
            "em": max(float(exact_match_score(prediction, gold)) for gold in golds),
            "f1": max(float(f1_score(prediction, gold)) for gold in golds),
        }))


if __name__ == "__main__":
    main()
