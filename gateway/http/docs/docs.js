// The viewer of /openapi.json. No validator: that is a service on another host.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "list",
  filter: true,
  validatorUrl: null,
});
