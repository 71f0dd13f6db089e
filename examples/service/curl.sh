#!/bin/sh
# A shop in seven calls. Start a service first: melon serve --data shop.live
set -eu
URL=${MELON_URL:-http://127.0.0.1:8000}
JSON='Content-Type: application/json'

echo "== facts about items"
curl -sf -X POST "$URL/v1/items" -H "$JSON" -d '[
  {"item": "tea", "categories": ["drinks"], "attributes": {"price": 4.5}},
  {"item": "mug", "categories": ["kitchen"], "attributes": {"price": 9.0}},
  {"item": "pot", "categories": ["kitchen"], "available": false}]'; echo

echo "== interactions: durable when this answers, learned within a second"
ANSWER=$(curl -sf -X POST "$URL/v1/interactions" -H "$JSON" -H "Idempotency-Key: visit-1" -d '[
  {"user": "ann", "item": "tea"}, {"user": "ann", "item": "mug"}, {"user": "bob", "item": "tea"},
  {"user": "bob", "item": "pot"}, {"user": "cleo", "item": "mug"}, {"user": "cleo", "item": "jam", "type": "buy"}]')
echo "$ANSWER"
OFFSET=$(echo "$ANSWER" | sed 's/.*"offset":\([0-9]*\).*/\1/')

echo "== a list that knows them"
curl -sf "$URL/v1/recommendations/ann?k=3&after=$OFFSET&wait_ms=5000"; echo

echo "== a list under rules"
curl -sf -X POST "$URL/v1/recommendations" -H "$JSON" -d '{"users": ["bob"], "k": 3, "rules": {
  "filter": {"not": {"field": "price", "gt": 5}}, "exclude": ["tea"], "pin": [{"item": "jam", "at": 1}]}}'; echo

echo "== a visitor who is not known"
curl -sf -X POST "$URL/v1/recommendations" -H "$JSON" -d '{"history": ["tea"], "k": 2}'; echo

echo "== what is going on"
curl -sf "$URL/v1/status"; echo

echo "== forget a person: for whoever may read the service's folder, or has a key with the scope admin"
curl -sf -X DELETE "$URL/v1/users/cleo" -H "Authorization: Bearer ${MELON_KEY:-$(cat shop.live/admin.token)}"; echo
