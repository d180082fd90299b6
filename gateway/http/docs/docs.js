// The viewer of /openapi.json. No validator: that is a service on another host.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "none", // with all of its 150 operations open, the page does not render to its end
  filter: true,
  validatorUrl: null,
});
