"""Routes of resources: each request calls a verb of ``api``, a subresource or a review, and returns its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from deploy.local.apiserver.apimachinery import errors, media_types
from deploy.local.apiserver.apimachinery.jsonvalue import JsonObject
from deploy.local.apiserver.authn.identity import REVIEWS, Authenticator, Identity
from deploy.local.apiserver.patch.apply import Application, apply
from deploy.local.apiserver.patch.listkeys import builtin_list_keys, schema_list_keys
from deploy.local.apiserver.patch.merge import json_patch, merge_patch
from deploy.local.apiserver.patch.strategic import strategic_patch
from deploy.local.apiserver.registry import subresources
from deploy.local.apiserver.registry.api import Api, RequestTarget, StoreResult, WriteOptions
from deploy.local.apiserver.registry.listing import list_page
from deploy.local.apiserver.registry.metadata import timestamp
from deploy.local.apiserver.registry.watching import Watch
from deploy.local.apiserver.routes import requests
from deploy.local.apiserver.routes.responses import ClientView, json_response, raw_response
from deploy.local.apiserver.schema import shapes
from deploy.local.apiserver.storage.store import StoredObject

Change = Callable[[JsonObject], JsonObject]
"""Returns the desired state of an object, given its current one."""

# Merge keys are known only for built-in kinds.
_CUSTOM_PATCHES: Final = tuple(kind for kind in media_types.PATCHES if kind != media_types.STRATEGIC_PATCH)


def _object(patch: Any) -> JsonObject:
    if not isinstance(patch, dict):
        raise errors.bad_request(f"a patch of this kind is an object, got {type(patch).__name__}")
    return patch


def apply_change(target: RequestTarget, body: requests.Body, options: WriteOptions, now: str) -> Change:
    """The change of a server-side apply, which gets ``{}`` if the object does not exist. Raises 400 or 422."""
    if not options.field_manager:
        cause = errors.Cause("fieldManager", "Required value: is required for apply patch", "FieldValueRequired")
        raise errors.invalid(errors.Subject("patchoptions", "meta.k8s.io", "", "PatchOptions"), [cause])
    resource = target.resource
    applied = _object(body.value(media_types.PATCHES))
    shapes.check_metadata(applied.get("metadata"))
    if not applied.get("apiVersion") or not applied.get("kind"):
        raise errors.bad_request(
            f"invalid object type: {applied.get('apiVersion', '')}, Kind={applied.get('kind', '')}"
        )
    # Only the server tracks field ownership.
    if (applied.get("metadata") or {}).get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    keys = partial(schema_list_keys, resource.schema.document) if resource.schema else builtin_list_keys
    application = Application(options.field_manager, options.force, resource.api_version, now, keys, target.subresource)
    return lambda live: apply(live, applied, application)


# Without server-side apply, which may create its object, and needs the request's options.
_PATCHES: Final[dict[str, Callable[[Any], Change]]] = {
    media_types.JSON_PATCH: lambda patch: lambda body: json_patch(body, patch),
    media_types.MERGE_PATCH: lambda patch: lambda body: _object(merge_patch(body, _object(patch))),
    media_types.STRATEGIC_PATCH: lambda patch: lambda body: strategic_patch(body, _object(patch)),
}


def change_of(target: RequestTarget, body: requests.Body) -> Change:
    """The change of a patch. Raises a 400, or a 415 for an unsupported media type."""
    accepted = _CUSTOM_PATCHES if target.resource.custom else media_types.PATCHES
    if body.media_type not in accepted or body.media_type == media_types.APPLY_PATCH:
        raise errors.unsupported_media_type(body.media_type, accepted)
    return _PATCHES[body.media_type](body.value(accepted))


_NAMESPACE_VERBS: Final = frozenset({"create", "deletecollection"})
"""Collection verbs that, unlike list and watch, need a namespace."""


@dataclass(frozen=True, slots=True)
class Call:
    """One parsed request."""

    target: RequestTarget
    caller: Identity
    query: Mapping[str, str]
    body: requests.Body
    form: requests.Form


class ResourceRoutes:
    """Handlers of all resources below ``/api`` and ``/apis``."""

    def __init__(self, api: Api, authenticator: Authenticator, closing: asyncio.Event) -> None:
        self._api = api
        self._authenticator = authenticator
        self._closing = closing
        self._verbs: dict[tuple[str, bool], tuple[str, Callable[[Call], Response]]] = {
            ("GET", True): ("get", self._get),
            ("GET", False): ("list", self._list),
            ("POST", False): ("create", self._create),
            ("PUT", True): ("update", self._update),
            ("PATCH", True): ("patch", self._patch),
            ("DELETE", True): ("delete", self._delete),
            ("DELETE", False): ("deletecollection", self._delete_all),
        }
        self._subresources: dict[tuple[str, str], Callable[[Call], Response]] = {
            ("POST", "binding"): self._bind,
            ("POST", "eviction"): self._evict,
            ("POST", "token"): self._token,
            ("GET", "scale"): self._get_scale,
            ("PUT", "scale"): self._set_scale,
            ("PATCH", "scale"): self._patch_scale,
            ("GET", "status"): self._get,
            ("PUT", "status"): self._update,
            ("PATCH", "status"): self._patch,
            ("GET", "resize"): self._get,
            ("PUT", "resize"): self._update,
            ("PATCH", "resize"): self._patch,
            ("PUT", "finalize"): self._finalize,
        }

    async def __call__(self, request: Request) -> Response:
        """Handle a request on a resource."""
        # First, so that unauthenticated clients learn nothing about the served resources.
        caller = self._authenticator.caller(request.headers.get("authorization", ""))
        if caller is None:
            raise errors.unauthorized()
        requests.check_timeout(request.query_params)
        target = requests.target_of(self._api.catalog, request.url.path)
        raw = b"" if request.method == "GET" else await request.body()
        body = requests.Body.of(raw, request.headers.get("content-type", ""))
        call = Call(target, caller, request.query_params, body, requests.form_of(request.headers.get("accept", "")))
        return self._handler(request.method, target)(call)

    def _handler(self, method: str, target: RequestTarget) -> Callable[[Call], Response]:
        if target.subresource:
            handler = self._subresources.get((method, target.subresource))
            if handler is None:
                raise errors.method_not_allowed()
            return handler
        # No resource has the verb "", so a method that is not in the table raises a 405.
        verb, handler = self._verbs.get((method, bool(target.name)), ("", self._get))
        if verb not in target.resource.verbs:
            raise errors.method_not_allowed()
        if verb in _NAMESPACE_VERBS and target.resource.namespaced and not target.namespace:
            # As in kube-apiserver, which has such a route, without this method, for built-in resources only.
            raise errors.no_such_path() if target.resource.custom else errors.method_not_allowed()
        return handler

    def _view(self, call: Call) -> ClientView:
        include = call.query.get("includeObject", "Metadata")
        return ClientView(call.target.resource, call.form, include, self._api.environment.now())

    def _response(self, call: Call, stored: StoredObject, code: int = 200, warnings: tuple[str, ...] = ()) -> Response:
        response = raw_response(self._view(call).object(stored), code)
        for warning in warnings:
            # 299 is HTTP's code for miscellaneous warnings.
            quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
            response.headers.append("Warning", f'299 - "{quoted}"')
        return response

    def _outcome(self, call: Call, outcome: StoreResult) -> Response:
        return self._response(call, outcome.stored, 201 if outcome.created else 200, outcome.warnings)

    def _get(self, call: Call) -> Response:
        return self._response(call, self._api.get(call.target))

    def _list(self, call: Call) -> Response:
        if requests.flag(call.query, "watch"):
            return self._watch(call)
        page = list_page(self._api.store, call.target, requests.list_options(call.query))
        return raw_response(self._view(call).list(page))

    def _watch(self, call: Call) -> Response:
        options = requests.watch_options(call.query)
        watch = Watch(self._api.store, call.target, options, self._view(call).shape())
        return StreamingResponse(watch.lines(self._closing), media_type="application/json")

    def _create(self, call: Call) -> Response:
        resource = call.target.resource
        review = REVIEWS.get(resource.key)
        body = call.body.object(shapes.REVIEW if review is not None else None)
        if review is not None:
            status = review(self._authenticator, call.caller, body)
            head = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": {}}
            return json_response({**head, "spec": body.get("spec", {}), "status": status}, 201)
        return self._outcome(call, self._api.create(call.target, body, requests.write_options(call.query)))

    def _update(self, call: Call) -> Response:
        return self._outcome(
            call, self._api.update(call.target, call.body.object(), requests.write_options(call.query))
        )

    def _patch(self, call: Call) -> Response:
        if call.body.media_type == media_types.APPLY_PATCH:
            return self._apply(call)
        change = change_of(call.target, call.body)
        return self._outcome(call, self._api.change(call.target, change, requests.write_options(call.query)))

    def _apply(self, call: Call) -> Response:
        options = requests.write_options(call.query)
        change = apply_change(call.target, call.body, options, timestamp(self._api.environment.now()))
        # An apply may create an object, but not through a subresource.
        if self._api.store.get(call.target.key) is None and not call.target.subresource:
            return self._outcome(call, self._api.create(call.target, change({}), options))
        return self._outcome(call, self._api.change(call.target, change, options))

    def _delete(self, call: Call) -> Response:
        outcome = self._api.delete(
            call.target, requests.delete_options(call.query, call.body.optional_object(shapes.DELETE_OPTIONS))
        )
        # kube-apiserver returns a removed pod; for other kinds it returns a Status.
        if not outcome.gone or call.target.resource.key == "pods":
            return self._response(call, outcome.stored)
        resource = call.target.resource
        details = {"name": call.target.name, "kind": resource.plural, "uid": outcome.stored.body["metadata"]["uid"]}
        if resource.group:
            details["group"] = resource.group
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return json_response(done)

    def _delete_all(self, call: Call) -> Response:
        options = requests.delete_options(call.query, call.body.optional_object(shapes.DELETE_OPTIONS))
        page = list_page(self._api.store, call.target, requests.list_options(call.query))
        for item in page.items:
            self._api.delete(RequestTarget(call.target.resource, item.key.namespace, item.key.name), options)
        return raw_response(self._view(call).list(page))

    def _bind(self, call: Call) -> Response:
        options = requests.write_options(call.query)
        return json_response(subresources.bind(self._api, call.target, call.body.object(shapes.BINDING), options), 201)

    def _evict(self, call: Call) -> Response:
        # Clients may omit the kind, which `delete_options` needs to find the options.
        options = requests.delete_options(call.query, {**call.body.object(shapes.EVICTION), "kind": "Eviction"})
        return json_response(subresources.evict(self._api, call.target, options), 201)

    def _token(self, call: Call) -> Response:
        request, key = call.body.object(shapes.TOKEN_REQUEST), self._authenticator.signing_key
        return json_response(subresources.issue_token(self._api, call.target, request, key), 201)

    def _get_scale(self, call: Call) -> Response:
        return json_response(subresources.scale_of(call.target.resource, self._api.get(call.target)))

    def _set_scale(self, call: Call) -> Response:
        return self._scaled(call, call.body.object(shapes.SCALE))

    def _patch_scale(self, call: Call) -> Response:
        # The patch is for the Scale, not for the object itself.
        current = subresources.scale_of(call.target.resource, self._api.get(call.target))
        changed = change_of(call.target, call.body)(current)
        shapes.check_shape(changed, shapes.SCALE)
        return self._scaled(call, changed)

    def _scaled(self, call: Call, scale: JsonObject) -> Response:
        outcome = subresources.set_scale(self._api, call.target, scale, requests.write_options(call.query))
        return json_response(subresources.scale_of(call.target.resource, outcome.stored))

    def _finalize(self, call: Call) -> Response:
        namespace, options = call.body.object(shapes.builtin_shape("namespaces")), requests.write_options(call.query)
        return self._outcome(call, subresources.finalize_namespace(self._api, call.target, namespace, options))
