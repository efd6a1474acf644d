"""The names of GitHub's webhook events, and which of them concern a card."""

from __future__ import annotations

CARD_KINDS = {"issues": "issue", "pull_request": "pull_request"}
"""Kinds that change a card, and where the payload holds it."""

ITEM_KINDS = ("project_card", "projects_v2_item")
"""Kinds that change a card of a project, which stands beside the issue or pull request that it may show."""

COMMENT_KINDS = {
    "issue_comment": "issue",
    "pull_request_review": "pull_request",
    "pull_request_review_comment": "pull_request",
    "pull_request_review_thread": "pull_request",
}
"""Kinds that speak of a card and leave it as it is, and where the payload holds the card."""

ISSUE_SIDE_KIND = "issues"
"""A card's kind that only speaks of a card where its issue is the other side of a pull request."""

CONCERNS_NO_CARD = "concerns no card"

OTHER_KINDS = frozenset(
    {
        "branch_protection_configuration",
        "branch_protection_rule",
        "bypass_request_push_ruleset",
        "bypass_request_secret_scanning",
        "check_run",
        "check_suite",
        "code_scanning_alert",
        "commit_comment",
        "content_reference",
        "create",
        "custom_property",
        "custom_property_promoted_to_enterprise",
        "custom_property_values",
        "delete",
        "dependabot_alert",
        "deploy_key",
        "deployment",
        "deployment_protection_rule",
        "deployment_review",
        "deployment_status",
        "discussion",
        "discussion_comment",
        "dismissal_request_code_scanning",
        "dismissal_request_dependabot",
        "dismissal_request_secret_scanning",
        "enterprise",
        "exemption_request_push_ruleset",
        "exemption_request_secret_scanning",
        "fork",
        "fork_apply",
        "github_app_authorization",
        "gollum",
        "installation",
        "installation_repositories",
        "installation_target",
        "integration_installation",
        "integration_installation_repositories",
        "issue_dependencies",
        "label",
        "marketplace_purchase",
        "member",
        "membership",
        "merge_group",
        "merge_queue_entry",
        "meta",
        "milestone",
        "org_block",
        "organization",
        "organization_custom_property",
        "organization_custom_property_values",
        "package",
        "page_build",
        "personal_access_token_request",
        "ping",
        "project",
        "project_column",
        "projects_v2",
        "projects_v2_status_update",
        "public",
        "push",
        "registry_package",
        "release",
        "repository",
        "repository_advisory",
        "repository_dispatch",
        "repository_import",
        "repository_ruleset",
        "repository_vulnerability_alert",
        "secret_scanning_alert",
        "secret_scanning_alert_location",
        "secret_scanning_scan",
        "security_advisory",
        "security_and_analysis",
        "sponsorship",
        "star",
        "status",
        "sub_issues",
        "team",
        "team_add",
        "user",
        "watch",
        "workflow_dispatch",
        "workflow_job",
        "workflow_run",
    }
)
"""Every other event that GitHub, its Enterprise Server included, sends or sent; none of them becomes an event here."""
