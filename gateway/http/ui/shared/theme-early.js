// Before the first paint, so that a dark page never flashes white. The only script that is no module.
"use strict";
{
  const chosen = localStorage.getItem("interlingua.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
