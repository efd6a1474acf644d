"use strict";

// The stream begins with the whole board and goes on with changes: this page owns no cursor, and after a lost
// connection it simply gets the whole board again.

const SHOWN = 200;
const cards = new Map();
let lost = false;
const byId = (id) => document.getElementById(id);

function item(text) {
  const li = document.createElement("li");
  li.textContent = text;
  return li;
}

function show() {
  const sorted = [...cards.values()].sort((a, b) => a.card_id.localeCompare(b.card_id));
  byId("count").textContent = String(sorted.length);
  const shown = sorted.slice(0, SHOWN).map((card) => item(`${card.card_id}: ${card.title} (${card.state})`));
  if (sorted.length > SHOWN) shown.push(item(`… and ${sorted.length - SHOWN} more`));
  byId("cards").replaceChildren(...shown);
}

function tell(text) {
  const log = byId("log");
  log.prepend(item(`${new Date().toLocaleTimeString()} ${text}`));
  while (log.children.length > 50) log.lastChild.remove();
}

function whole(list) {
  cards.clear();
  for (const card of list) cards.set(card.card_id, card);
  show();
}

const stream = new EventSource("/events");
stream.onopen = () => { byId("state").textContent = "connected"; };
stream.onerror = () => {
  byId("state").textContent = "connection lost; trying again …";
  lost = true;
};
stream.addEventListener("board", (event) => {
  whole(JSON.parse(event.data).cards);
  if (lost) tell("the whole board came anew, with what was missed");
  lost = false;
});
stream.addEventListener("reconciled", (event) => {
  const told = JSON.parse(event.data);
  whole(told.cards);
  tell(`reconciled: ${told.why}`);
});
stream.addEventListener("deleted", (event) => {
  const told = JSON.parse(event.data);
  cards.delete(told.card_id);
  show();
  tell(`${told.card_id} was deleted`);
});
stream.addEventListener("restored", (event) => {
  const told = JSON.parse(event.data);
  cards.set(told.card_id, told);
  show();
  tell(`${told.card_id} was restored`);
});
