"""The numbers of the MeLON paper: every table is whole, and they were typed in right."""

import pytest

from published import ABLATION, DATASETS, ELAPSED_MS, METRICS, RESULTS, paper_dataset, paper_table


class TestThePapersNumbers:
    def test_every_table_is_whole(self) -> None:
        assert {where[0] for where in RESULTS} == {"Adressa", "Amazon", "Yelp"} == set(ABLATION)
        assert RESULTS.keys() == ELAPSED_MS.keys()
        for (_, recommender), rows in RESULTS.items():
            assert len(rows) == (6 if recommender == "ncf" else 7)
            assert ("sml" in rows) == (recommender == "bpr")
            for row in rows.values():
                assert tuple(row) == METRICS
                hits = [row[f"HR@{cut}"][0] for cut in (5, 10, 20)]
                assert hits == sorted(hits)

    def test_some_of_them(self) -> None:
        assert RESULTS["Adressa", "ncf"]["melon"]["HR@5"] == (0.863, 0.004)
        assert RESULTS["Yelp", "bpr"]["eals"]["NDCG@20"] == (0.562, 0.002)
        assert RESULTS["Amazon", "bpr"]["s2meta"]["NDCG@20"] == (0.237, 0.216)
        assert ELAPSED_MS["Yelp", "ncf"]["s2meta"] == 3345
        assert ABLATION["Yelp"]["melon_p"] == (0.208, 0.0)
        assert RESULTS["Adressa", "bpr"]["melon"]["HR@5"] == ABLATION["Adressa"]["melon"]

    def test_the_categories_add_up(self) -> None:
        amazon = [each for name, each in DATASETS.items() if name.startswith("Amazon")]
        assert sum(each.users for each in amazon) == 91_013
        assert sum(each.items for each in amazon) == 118_031
        assert sum(each.interactions for each in amazon) == 3_625_349

    @pytest.mark.parametrize(
        ("stream", "dataset", "table"),
        [
            ("news_globo", "Adressa", "Adressa"),
            ("amazon_grocery", "Amazon Grocery", "Amazon"),
            ("yelp_unfiltered", "Yelp", "Yelp"),
            ("amazon_toys", None, None),
            ("my stream", None, None),
        ],
    )
    def test_what_stands_in_for_what(self, stream: str, dataset: str | None, table: str | None) -> None:
        found = paper_dataset(stream)
        assert (found and found.name, paper_table(stream)) == (dataset, table)
