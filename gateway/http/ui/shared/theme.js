// Light or dark: the system's, until somebody chooses.
const THEME = "interlingua.theme";

export function toggleTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const now = document.documentElement.dataset.theme || system;
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem(THEME, next);
  dispatchEvent(new Event("themechange"));
}
