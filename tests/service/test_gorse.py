"""The routes of Gorse's clients: over plain HTTP, and by its own clients as they are published."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import Service, Start
from melon.service.keys import keys_of

WHEN = "2026-01-02T03:04:05Z"


@pytest.fixture(scope="module")
def gorse(start: Start) -> Service:
    return start(gorse=True, learn="watch,like", hide="read", store="seen", item_users=0)


def feedback(user: str, item: str, kind: str = "watch", when: str = WHEN) -> dict[str, object]:
    return {"FeedbackType": kind, "UserId": user, "ItemId": item, "Value": 1.0, "Timestamp": when, "Comment": ""}


def known(service: Service) -> None:
    """Wait until the model knows everything that was sent."""
    service.wait(lambda: service.get("/v1/status")["lag"] == 0)


class TestFeedback:
    def test_a_retry_changes_nothing(self, gorse: Service) -> None:
        sent = [feedback("a/b", "c"), feedback("a", "b/c")]  # two, not one
        before = gorse.get("/v1/status")["log"]["events"]
        for _ in range(3):
            assert gorse.post(sent, "/api/feedback") == {"RowAffected": 2}
            assert gorse.call("PUT", "/api/feedback", sent).content == {"RowAffected": 2}
        assert gorse.get("/v1/status")["log"]["events"] == before + 2
        assert [one["ItemId"] for one in gorse.get("/api/user/a%2Fb/feedback")] == ["c"]

    def test_without_a_time_there_is_one_of_each_type_user_and_item(self, gorse: Service) -> None:
        sent = {**feedback("timeless", "i1"), "Timestamp": ""}
        for _ in range(2):
            gorse.post([sent, {**sent, "FeedbackType": "like"}], "/api/feedback")
        assert {one["FeedbackType"] for one in gorse.get("/api/user/timeless/feedback")} == {"watch", "like"}
        assert len(gorse.get("/api/user/timeless/feedback")) == 2

    def test_it_is_listed_by_user_by_pair_and_by_type(self, gorse: Service) -> None:
        gorse.post(
            [feedback("lister", "i1"), feedback("lister", "i1", "like"), feedback("lister", "i2")], "/api/feedback"
        )
        assert len(gorse.get("/api/user/lister/feedback")) == 3
        assert len(gorse.get("/api/user/lister/feedback/watch")) == 2
        assert {one["FeedbackType"] for one in gorse.get("/api/feedback/lister/i1")} == {"watch", "like"}
        one = gorse.get("/api/feedback/like/lister/i1")
        assert (one["UserId"], one["ItemId"], one["Timestamp"]) == ("lister", "i1", WHEN)
        assert gorse.call("GET", "/api/feedback/like/lister/i2").status == 404
        pages, cursor = [], ""
        while True:
            page = gorse.get(f"/api/feedback/watch?n=2&cursor={cursor}")
            pages += page["Feedback"]
            cursor = page["Cursor"]
            if not cursor:
                break
        assert [one["ItemId"] for one in pages if one["UserId"] == "lister"] == ["i1", "i2"]

    def test_what_is_deleted_leaves_histories_and_may_be_recommended_again(self, gorse: Service) -> None:
        user = "u3"
        gorse.post([feedback(user, "i10"), feedback(user, "i11"), feedback(user, "i11", "like")], "/api/feedback")
        known(gorse)

        def listed() -> set[str]:
            return set(gorse.get(f"/api/recommend/{user}?n=500"))

        assert not {"i10", "i11"} & listed()
        answer = gorse.call("DELETE", f"/api/feedback/{user}/i10").content
        assert answer["RowAffected"] == 1
        assert "stays in the model" in answer["Note"]
        assert gorse.call("DELETE", f"/api/feedback/watch/{user}/i11").content["RowAffected"] == 1
        assert gorse.call("DELETE", f"/api/feedback/watch/{user}/i11").content["RowAffected"] == 0
        assert gorse.get(f"/api/feedback/{user}/i10") == []
        known(gorse)
        assert "i10" in listed()
        assert "i11" not in listed()  # it is still liked
        assert gorse.post([feedback(user, "i10")], "/api/feedback") == {"RowAffected": 1}
        assert len(gorse.get(f"/api/feedback/{user}/i10")) == 1

    def test_what_was_read_is_hidden_until_that_is_deleted(self, gorse: Service) -> None:
        gorse.post([feedback("reader", "i5", "read")], "/api/feedback")
        assert "i5" not in gorse.get("/api/recommend/reader?n=500")
        gorse.call("DELETE", "/api/feedback/reader/i5")
        assert "i5" in gorse.get("/api/recommend/reader?n=500")

    @pytest.mark.parametrize("body", [{}, [1], [{"UserId": "u"}], [feedback("", "i")], [feedback("u", "i", when="no")]])
    def test_what_is_no_feedback_is_refused(self, gorse: Service, body: object) -> None:
        assert gorse.call("POST", "/api/feedback", body).status == 400


class TestUsersAndItems:
    def test_labels_and_comments_come_back(self, gorse: Service) -> None:
        user = {"UserId": "labelled", "Labels": {"age": 7, "deep": {"a": [1]}}, "Comment": "x"}
        assert gorse.post(user, "/api/user") == {"RowAffected": 1}
        assert gorse.get("/api/user/labelled") == user
        assert gorse.call("PATCH", "/api/user/labelled", {"Comment": "y"}).content == {"RowAffected": 1}
        assert gorse.get("/api/user/labelled") == {**user, "Comment": "y"}
        assert gorse.call("DELETE", "/api/user/labelled").content == {"RowAffected": 1}
        assert gorse.call("GET", "/api/user/labelled").status == 404

    def test_users_and_items_of_feedback_are_there(self, gorse: Service) -> None:
        gorse.post([feedback("by itself", "item by itself")], "/api/feedback")
        assert gorse.get("/api/user/by%20itself") == {"UserId": "by itself", "Labels": None, "Comment": ""}
        item = gorse.get("/api/item/item%20by%20itself")
        assert (item["IsHidden"], item["Categories"], item["Labels"]) == (False, [], None)

    def test_items_are_facts_that_lists_respect(self, gorse: Service) -> None:
        items = [
            {"ItemId": f"i{n}", "Categories": ["odd" if n % 2 else "even", "all"], "IsHidden": n == 4,
             "Timestamp": f"2026-02-0{n}T00:00:00Z", "Labels": {"n": n, "words": ["a"]}, "Comment": f"Number {n}"}
            for n in range(1, 8)
        ]  # fmt: skip
        assert gorse.post(items, "/api/items") == {"RowAffected": 7}
        assert gorse.get("/api/item/i3") == items[2]
        assert gorse.get("/v1/items/i3")["attributes"] == {"n": 3, "words": ["a"]}
        assert set(gorse.get("/api/recommend/u1/odd?n=100")) <= {"i1", "i3", "i5", "i7"}
        assert [one["Id"] for one in gorse.get("/api/latest?n=3")] == ["i7", "i6", "i5"]
        assert [one["Id"] for one in gorse.get("/api/latest/even?n=3&offset=1")] == ["i2"]  # i4 is hidden
        assert [one["ItemId"] for one in gorse.get("/api/items?q=number%207")["Items"]] == ["i7"]
        gorse.call("PATCH", "/api/item/i3", {"IsHidden": True, "Categories": None})
        assert gorse.get("/api/item/i3") == {**items[2], "IsHidden": True}
        gorse.call("PUT", "/api/item/i5/category/new")
        gorse.call("DELETE", "/api/item/i5/category/odd")
        assert gorse.get("/api/item/i5")["Categories"] == ["all", "new"]
        gorse.call("DELETE", "/api/item/i7")
        assert gorse.call("GET", "/api/item/i7").status == 404
        assert "i7" not in gorse.get("/api/recommend/u1?n=500")

    def test_pages_are_in_order_and_whole(self, gorse: Service) -> None:
        gorse.post([{"UserId": f"page{n:02}"} for n in range(25)], "/api/users")
        found, cursor = [], ""
        while True:
            page = gorse.get(f"/api/users?n=7&cursor={cursor}".replace(" ", "%20"))
            found += [one["UserId"] for one in page["Users"]]
            cursor = page["Cursor"]
            if not cursor:
                break
        assert found == sorted(found)
        assert sum(one.startswith("page") for one in found) == 25


class TestLists:
    def test_lists_are_those_of_the_service_itself(self, gorse: Service) -> None:
        known(gorse)
        own = [one["item"] for one in gorse.get("/v1/recommendations/u2?k=12")["items"]]
        assert gorse.get("/api/recommend/u2?n=5&offset=7") == own[7:]
        scored = gorse.get("/api/recommend/u2?n=12", X_API_Version="2")
        assert [one["Id"] for one in scored] == own
        assert [one["Id"] for one in gorse.get("/api/popular/?n=4")] == [
            one["item"] for one in gorse.get("/v1/popular?k=4")["items"]
        ]
        similar = [one["item"] for one in gorse.get("/v1/similar/i20?k=3")["items"]]
        assert [one["Id"] for one in gorse.get("/api/item/i20/neighbors/?n=3")] == similar
        visitor = gorse.post([feedback("x", "i20")], "/api/session/recommend?n=3")
        assert len(visitor) == 3
        assert set(visitor[0]) == {"Id", "Score"}

    def test_a_list_may_be_written_back(self, gorse: Service) -> None:
        items = gorse.get("/api/recommend/written?n=3&write-back-type=read")
        assert {one["ItemId"] for one in gorse.get("/api/user/written/feedback/read")} == set(items)
        assert not set(items) & set(gorse.get("/api/recommend/written?n=50"))
        assert gorse.call("GET", "/api/recommend/written?write-back-type=watch").status == 400
        assert gorse.call("GET", "/api/recommend/written?write-back-type=read&write-back-delay=10m").status == 501

    @pytest.mark.parametrize("path", ["/api/user/u1/neighbors", "/api/item/i1/feedback/", "/api/non-personalized/hot"])
    def test_the_rest_is_501_with_a_hint(self, gorse: Service, path: str) -> None:
        answer = gorse.call("GET", path)
        assert answer.status == 501
        assert answer.content["error"]["hint"]

    def test_health(self, gorse: Service) -> None:
        assert gorse.get("/api/health/live") == gorse.get("/api/health/ready") == {"Ready": True}


def test_keys_are_those_of_the_service(start: Start, tmp_path: Path) -> None:
    service = start(gorse=True, data=tmp_path / "keyed", ready=False)
    service.wait(lambda: service.call("GET", "/health/ready").status == 200)
    keys = keys_of(service.settings)
    write, reading = keys.add(["write"])[0], keys.add(["read"])[0]
    time.sleep(1.1)
    assert service.call("POST", "/api/feedback", [], X_API_Key=write).status == 200
    assert service.call("POST", "/api/feedback", [], X_API_Key=reading).status == 403
    assert service.call("GET", "/api/recommend/u1", X_API_Key=reading).status == 200
    assert service.call("GET", "/api/users", X_API_Key=reading).status == 403
    assert service.call("GET", "/api/recommend/u1", X_API_Key="wrong").status == 401


def test_without_the_setting_there_is_no_such_route(start: Start) -> None:
    assert start().call("GET", "/api/recommend/u1").status == 404


# Its own clients, as they are published. Their tests are written for the MovieLens data of one Gorse server.

FILMS = [
    ("1", ["Animation", "Children's", "Comedy"], "1995-01-01T00:00:00Z", "Toy Story (1995)"),
    ("10", ["Drama", "War"], "1996-01-22T00:00:00Z", "Richard III (1995)"),
    ("100", ["Crime", "Drama", "Thriller"], "1997-02-14T00:00:00Z", "Fargo (1996)"),
    ("1060", ["Comedy"], "1996-01-01T00:00:00Z", "Another"),
    ("11", ["Drama"], "1996-01-01T00:00:00Z", "A further one"),
]
PEOPLE = [("1", 24, "technician", "85711"), ("10", 53, "lawyer", "90703"), ("100", 36, "executive", "90254")]


@pytest.fixture(scope="module")
def films(start: Start) -> Service:
    """A service with the films and people that the clients' tests name, and a key."""
    service = start(gorse=True, learn="watch", model=None, item_users=0)
    service.key = keys_of(service.settings).add(["read", "write", "admin"])[0]
    service.wait(lambda: service.call("GET", "/v1/status", Authorization="none").status == 401)
    service.post(
        [{"ItemId": i, "Categories": c, "Timestamp": t, "Comment": text} for i, c, t, text in FILMS], "/api/items"
    )
    labels = [{"age": a, "gender": "M", "occupation": o, "zip_code": z} for _, a, o, z in PEOPLE]
    people = [{"UserId": who[0], "Labels": one} for who, one in zip(PEOPLE, labels, strict=True)]
    service.post([*people, {"UserId": "999"}], "/api/users")
    taken = [feedback(str(user), film[0]) for user in range(200, 210) for film in FILMS[user % 2 :]]
    service.post(taken, "/api/feedback")
    known(service)
    return service


#: Runs the test file as it is, for another address and key; those tests are left out that name the very items which
#: Gorse's model gives on MovieLens.
PYGORSE = """
import sys, unittest
import test_gorse
test_gorse.GORSE_ENDPOINT, test_gorse.GORSE_API_KEY = sys.argv[1:]
tests = [one for case in unittest.defaultTestLoader.loadTestsFromModule(test_gorse) for one in case]
chosen = [one for one in tests if one._testMethodName not in ("test_item_to_item", "test_recommend")]
done = unittest.TextTestRunner().run(unittest.TestSuite(chosen))
print(len(tests), done.testsRun)
sys.exit(not done.wasSuccessful())
"""


@pytest.mark.slow
def test_pygorse_unchanged_passes_its_own_tests(films: Service) -> None:
    checkout = os.environ.get("MELON_PYGORSE")
    if not checkout or importlib.util.find_spec("aiohttp") is None or importlib.util.find_spec("requests") is None:
        pytest.skip("needs pip install aiohttp requests, and MELON_PYGORSE=… (a clone of gorse-io/PyGorse)")
    done = subprocess.run(
        [sys.executable, "-c", PYGORSE, films.url, str(films.key)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([checkout, str(Path(checkout) / "tests")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    all_of_them, ran = map(int, done.stdout.split())
    assert ran == all_of_them - 4 > 0


GORSEJS = """
const {Gorse} = require('gorsejs');
const client = new Gorse({endpoint: process.argv[2], secret: process.argv[3]});
const item = {ItemId: '500', IsHidden: false, Labels: ['a'], Categories: ['d'], Timestamp: '2022-08-07T00:26:46Z',
              Comment: 'c'};
const event = (kind, item) => ({FeedbackType: kind, UserId: '500', ItemId: item, Timestamp: new Date(0)});
(async () => {
  const told = {};
  told.user = [await client.insertUser({UserId: '500', Labels: ['a'], Comment: 'c'}), await client.getUser('500')];
  told.item = [await client.upsertItem(item), await client.getItem('500')];
  told.feedback = await client.insertFeedbacks([event('watch', '1'), event('watch', '10')]);
  told.again = await client.upsertFeedbacks([event('watch', '1')]);
  told.listed = (await client.getUserFeedback('500')).length;
  told.gone = await client.deleteFeedback({type: 'watch', userId: '500', itemId: '1'});
  told.left = (await client.getUserFeedback('500')).length;
  told.recommend = await client.getRecommend({userId: '500', cursorOptions: {n: 2}});
  told.session = await client.getSessionRecommend([event('watch', '10')], {cursorOptions: {n: 2}});
  told.popular = await client.getPopular({cursorOptions: {n: 2}});
  told.latest = await client.getLatest({cursorOptions: {n: 2}});
  told.near = await client.getItemNeighbors({itemId: '10', cursorOptions: {n: 2}});
  told.deleted = await client.deleteUser('500');
  try { await client.getUser('500'); } catch (problem) { told.code = problem.code ?? problem.status; }
  console.log(JSON.stringify(told));
})().catch(problem => { console.error(problem); process.exit(1); });
"""


@pytest.mark.slow
def test_gorsejs_unchanged(films: Service, tmp_path: Path) -> None:
    folder = os.environ.get("MELON_NODE_MODULES")
    if shutil.which("node") is None or not folder or not (Path(folder) / "gorsejs").is_dir():
        pytest.skip("needs node, and MELON_NODE_MODULES=…/node_modules after npm install gorsejs")
    script = tmp_path / "client.js"
    script.write_text(GORSEJS)
    done = subprocess.run(
        ["node", str(script), films.url, str(films.key)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "NODE_PATH": folder},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["user"] == [1, {"UserId": "500", "Labels": ["a"], "Comment": "c"}]
    assert told["item"][1]["Timestamp"] == "2022-08-07T00:26:46Z"
    assert (told["feedback"], told["again"], told["listed"], told["left"]) == (2, 1, 2, 1)
    assert told["gone"]["RowAffected"] == 1
    assert [len(told[name]) for name in ("recommend", "session", "popular", "latest", "near")] == [2] * 5
    assert all(isinstance(one, str) for one in told["recommend"])
    assert told["deleted"] == 1
    assert told["code"] == 404
