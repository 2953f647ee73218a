"""Two thousand tools as real servers have them, and a hundred questions for single ones of them in other words.

The tools are those of 40 services: each has resources of its kind, and the operations that such services have. The
questions are as a person or a model asks them, and were written before the search was run. After that the list of verbs
that mean the same, and the weights of the search, were set once with their help, and no question was changed.
"""

from __future__ import annotations

from mcp_actors.types import Tool

# Service: what its tools say they are about, and its resources with a few words of each.
SERVICES: dict[str, tuple[str, dict[str, str]]] = {
    "github": (
        "the code hosting platform",
        {
            "issue": "problem report with labels",
            "pull_request": "proposed change of code under review",
            "branch": "line of development",
            "release": "published version with notes",
            "workflow_run": "run of a continuous integration pipeline",
        },
    ),
    "gitlab": (
        "the DevOps platform",
        {
            "merge_request": "proposed merge of one branch into another",
            "pipeline": "continuous integration run",
            "project": "repository with settings",
            "snippet": "shared piece of code",
            "runner": "machine that executes jobs",
        },
    ),
    "jira": (
        "the issue tracker",
        {
            "ticket": "unit of work on a board",
            "sprint": "iteration with a start and an end",
            "epic": "large body of work",
            "worklog": "time spent on a ticket",
            "component": "part of a product",
        },
    ),
    "slack": (
        "the team chat",
        {
            "message": "text in a conversation",
            "channel": "room for conversations",
            "reaction": "emoji on a message",
            "reminder": "note that comes at a time",
            "usergroup": "named set of people",
        },
    ),
    "gmail": (
        "the mail service",
        {
            "email": "electronic letter",
            "draft": "unsent letter",
            "label": "tag on letters",
            "filter": "rule for incoming letters",
            "attachment": "file inside a letter",
        },
    ),
    "calendar": (
        "the calendar service",
        {
            "event": "appointment with participants",
            "availability": "free and busy times",
            "invitation": "request to take part",
            "room": "bookable meeting place",
            "holiday": "day off",
        },
    ),
    "drive": (
        "the file storage",
        {
            "file": "stored document",
            "folder": "container of documents",
            "permission": "right of access to a document",
            "revision": "earlier state of a document",
            "comment": "note on a document",
        },
    ),
    "notion": (
        "the workspace for notes",
        {
            "page": "note with blocks",
            "database": "table of notes",
            "block": "paragraph or list in a note",
            "template": "pattern for new notes",
            "workspace_member": "person with access",
        },
    ),
    "stripe": (
        "the payment processor",
        {
            "charge": "payment by card",
            "refund": "money returned to a payer",
            "subscription": "recurring payment plan of a buyer",
            "invoice": "request for payment",
            "payout": "transfer to a bank account",
        },
    ),
    "paypal": (
        "the online payment system",
        {
            "order": "checkout of a buyer",
            "dispute": "claim of a buyer",
            "transaction": "movement of money",
            "capture": "collected authorization",
            "billing_agreement": "consent to regular charges",
        },
    ),
    "shopify": (
        "the online shop",
        {
            "product": "article for sale",
            "inventory_level": "stock at a location",
            "order": "purchase",
            "discount_code": "coupon",
            "customer": "buyer with an account",
        },
    ),
    "salesforce": (
        "the customer relationship system",
        {
            "lead": "possible buyer",
            "opportunity": "potential deal",
            "contact": "person at a company",
            "account": "company",
            "campaign": "marketing effort",
        },
    ),
    "hubspot": (
        "the marketing suite",
        {
            "deal": "sale in a stage",
            "form_submission": "filled-in web form",
            "email_campaign": "bulk letter",
            "landing_page": "web page for a campaign",
            "workflow": "automated sequence",
        },
    ),
    "zendesk": (
        "the help desk",
        {
            "ticket": "request of a customer for support",
            "macro": "prepared answer",
            "view": "saved selection of requests",
            "satisfaction_rating": "score by a customer",
            "help_article": "page of the knowledge base",
        },
    ),
    "twilio": (
        "the telephony platform",
        {
            "sms": "short text to a phone",
            "voice_call": "telephone conversation",
            "phone_number": "rented line",
            "recording": "audio of a conversation",
            "verification": "one-time code",
        },
    ),
    "sendgrid": (
        "the mail delivery service",
        {
            "template": "layout of letters",
            "bounce": "undeliverable letter",
            "suppression": "address that gets nothing",
            "sender": "verified from-address",
            "delivery_report": "statistics of letters",
        },
    ),
    "aws_s3": (
        "the object storage",
        {
            "bucket": "container of objects",
            "object": "stored blob",
            "lifecycle_rule": "expiry of objects",
            "presigned_url": "temporary link",
            "bucket_policy": "access rules",
        },
    ),
    "aws_ec2": (
        "the virtual machines of the cloud",
        {
            "instance": "virtual server",
            "volume": "disk of a server",
            "security_group": "firewall rules",
            "snapshot": "copy of a disk",
            "key_pair": "login key",
        },
    ),
    "aws_lambda": (
        "the serverless functions",
        {
            "function": "code that runs on demand",
            "layer": "shared libraries",
            "invocation": "single execution",
            "alias": "pointer to a version",
            "event_source": "trigger",
        },
    ),
    "kubernetes": (
        "the container orchestrator",
        {
            "pod": "running containers",
            "deployment": "desired state of replicas",
            "service": "stable network endpoint",
            "namespace": "partition of the cluster",
            "config_map": "settings for containers",
        },
    ),
    "docker": (
        "the container engine",
        {
            "container": "isolated process",
            "image": "packaged filesystem",
            "network": "virtual network",
            "volume": "persistent data",
            "registry_tag": "name of a published image",
        },
    ),
    "terraform": (
        "the infrastructure tool",
        {
            "plan": "preview of changes",
            "state": "record of real infrastructure",
            "workspace": "separate state",
            "module": "reusable configuration",
            "variable": "input of a configuration",
        },
    ),
    "postgres": (
        "the relational database",
        {
            "table": "rows and columns",
            "index": "structure for fast lookups",
            "role": "login with privileges",
            "backup": "dump of the data",
            "query_plan": "how a statement is executed",
        },
    ),
    "redis": (
        "the key-value store",
        {
            "key": "named value",
            "stream": "log of entries",
            "channel": "publish-subscribe topic",
            "hash": "map of fields",
            "sorted_set": "members with scores",
        },
    ),
    "elasticsearch": (
        "the search engine",
        {
            "index": "collection of documents",
            "document": "JSON record",
            "mapping": "types of fields",
            "alias": "second name of a collection",
            "cluster_health": "condition of the nodes",
        },
    ),
    "grafana": (
        "the dashboards for metrics",
        {
            "dashboard": "page of graphs",
            "panel": "single graph",
            "alert_rule": "condition that notifies",
            "data_source": "connection to metrics",
            "annotation": "mark on a time axis",
        },
    ),
    "datadog": (
        "the monitoring service",
        {
            "monitor": "watch on a metric",
            "incident": "outage under investigation",
            "log": "line written by a program",
            "slo": "objective for reliability",
            "synthetic_test": "scripted check of a site",
        },
    ),
    "sentry": (
        "the error tracker",
        {
            "error_event": "exception with its stack trace",
            "project": "application that reports",
            "release": "deployed version",
            "alert": "notification about exceptions",
            "team": "group of developers",
        },
    ),
    "pagerduty": (
        "the on-call service",
        {
            "incident": "emergency that pages somebody",
            "schedule": "rota of people on duty",
            "escalation_policy": "who is paged next",
            "override": "temporary substitute on duty",
            "postmortem": "analysis afterwards",
        },
    ),
    "spotify": (
        "the music service",
        {
            "playlist": "ordered set of songs",
            "track": "song",
            "album": "record",
            "artist": "musician",
            "queue": "songs that play next",
        },
    ),
    "youtube": (
        "the video platform",
        {
            "video": "published clip",
            "caption": "subtitles",
            "channel": "page of a publisher",
            "comment": "viewer's remark",
            "thumbnail": "preview picture",
        },
    ),
    "airtable": (
        "the spreadsheet database",
        {
            "record": "row",
            "base": "set of tables",
            "view": "filtered rows",
            "field": "column",
            "webhook": "callback on changes",
        },
    ),
    "trello": (
        "the kanban boards",
        {
            "card": "task on a list",
            "board": "set of lists",
            "list": "column of tasks",
            "checklist": "steps of a task",
            "board_member": "collaborator",
        },
    ),
    "asana": (
        "the task manager",
        {
            "task": "thing to do",
            "project": "set of things to do",
            "section": "heading in a project",
            "portfolio": "group of projects",
            "goal": "target of a team",
        },
    ),
    "zoom": (
        "the video meetings",
        {
            "meeting": "online conference",
            "webinar": "broadcast with registration",
            "recording": "video of a conference",
            "participant": "attendee",
            "poll": "questions during a conference",
        },
    ),
    "maps": (
        "the map service",
        {
            "place": "shop or sight",
            "route": "way between two points",
            "geocode": "coordinates of an address",
            "distance_matrix": "travel times between many points",
            "elevation": "height above the sea",
        },
    ),
    "weather": (
        "the weather service",
        {
            "forecast": "expected conditions",
            "observation": "measured conditions",
            "severe_alert": "storm warning",
            "air_quality": "pollution",
            "climate_normal": "long-term average",
        },
    ),
    "flights": (
        "the air travel service",
        {
            "itinerary": "trip with legs",
            "seat_map": "places in a cabin",
            "fare": "price of a trip",
            "boarding_pass": "document for the gate",
            "flight_status": "delays and gates",
        },
    ),
    "hotels": (
        "the lodging service",
        {
            "reservation": "booked stay",
            "room_type": "kind of room",
            "rate": "price of a night",
            "guest_review": "opinion of a visitor",
            "amenity": "equipment of a house",
        },
    ),
    "hr": (
        "the personnel system",
        {
            "employee": "member of staff",
            "leave_request": "wish for days off",
            "payslip": "statement of wages",
            "job_opening": "vacancy",
            "performance_review": "assessment of staff",
        },
    ),
}
# Operation: its description, and arguments beside the id.
OPERATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "create": ("Creates a new {resource} in {service}. A {resource} is a {words}.", ("name", "properties")),
    "get": (
        "Gets one {resource} of {service} by its id, with all fields. A {resource} is a {words}.",
        ("id",),
    ),
    "list": ("Lists the {resource} entries of {service}, page by page, newest first.", ("page", "page_size")),
    "update": (
        "Updates fields of an existing {resource} in {service}; others keep their values.",
        ("id", "changes"),
    ),
    "delete": ("Deletes a {resource} from {service} permanently.", ("id",)),
    "search": ("Searches {service} for each {resource} that matches a text or filter.", ("query", "limit")),
    "export": ("Exports {resource} data of {service} as CSV or JSON.", ("format", "since")),
    "archive": ("Archives a {resource} of {service}, so that it is hidden but kept.", ("id",)),
    "share": ("Shares a {resource} of {service} with other accounts.", ("id", "recipients")),
    "history": ("Returns the change history of a {resource} in {service}.", ("id", "since")),
}


def make_tools() -> list[Tool]:
    """Returns 2,000 tools: 40 services, five resources of each, ten operations."""
    return [
        Tool(
            f"{service}_{operation}_{resource}",
            {
                "type": "object",
                "properties": {
                    each: {"type": "string", "description": f"The {each.replace('_', ' ')} of the {resource}"}
                    for each in arguments
                },
                "required": [arguments[0]],
            },
            description=text.format(
                service=f"{service.replace('_', ' ')}, {about}",
                resource=resource.replace("_", " "),
                words=words,
            ),
        )
        for service, (about, resources) in SERVICES.items()
        for resource, words in resources.items()
        for operation, (text, arguments) in OPERATIONS.items()
    ]


QUESTIONS: dict[str, str] = {
    "report a bug in our repo on GitHub": "github_create_issue",
    "open a PR on github": "github_create_pull_request",
    "drop a stale branch from the github repository": "github_delete_branch",
    "what changed over time in this github release": "github_history_release",
    "find failed CI runs on GitHub": "github_search_workflow_run",
    "modify the title of a merge request in GitLab": "gitlab_update_merge_request",
    "show all gitlab pipelines": "gitlab_list_pipeline",
    "look at one runner of gitlab": "gitlab_get_runner",
    "erase a gitlab snippet": "gitlab_delete_snippet",
    "add a ticket to the Jira backlog": "jira_create_ticket",
    "begin a new sprint in jira": "jira_create_sprint",
    "download the hours people logged in Jira as a spreadsheet": "jira_export_worklog",
    "enumerate jira epics": "jira_list_epic",
    "post something to a Slack channel": "slack_create_message",
    "set up a new room in slack": "slack_create_channel",
    "remind me in slack tomorrow at nine": "slack_create_reminder",
    "take back my emoji from a slack message": "slack_delete_reaction",
    "look up a conversation in Slack by keyword": "slack_search_message",
    "which mails in Gmail mention the contract": "gmail_search_email",
    "prepare an unsent gmail letter": "gmail_create_draft",
    "throw away a gmail draft": "gmail_delete_draft",
    "make a rule for incoming gmail": "gmail_create_filter",
    "fetch the file inside a gmail letter": "gmail_get_attachment",
    "put a meeting on my calendar": "calendar_create_event",
    "remove an appointment from the calendar": "calendar_delete_event",
    "when are people free, per the calendar": "calendar_get_availability",
    "reschedule an event in the calendar": "calendar_update_event",
    "find a bookable meeting place in the calendar": "calendar_search_room",
    "give somebody else access to a drive document": "drive_share_file",
    "make a directory on the drive": "drive_create_folder",
    "earlier states of a document on drive": "drive_list_revision",
    "leave a note on a drive document": "drive_create_comment",
    "write a new note page in Notion": "notion_create_page",
    "query a notion table of notes": "notion_search_database",
    "change a paragraph in a Notion note": "notion_update_block",
    "give a buyer their money back with Stripe": "stripe_create_refund",
    "bill a customer through stripe": "stripe_create_invoice",
    "stop a stripe subscription for good": "stripe_delete_subscription",
    "show Stripe payouts": "stripe_list_payout",
    "take a card payment by stripe": "stripe_create_charge",
    "see claims of buyers at PayPal": "paypal_list_dispute",
    "save paypal money movements to CSV": "paypal_export_transaction",
    "put a new article for sale into the Shopify store": "shopify_create_product",
    "correct the stock at a shopify location": "shopify_update_inventory_level",
    "make a coupon for Shopify": "shopify_create_discount_code",
    "which purchases were made in shopify": "shopify_list_order",
    "record a possible buyer in Salesforce": "salesforce_create_lead",
    "alter a potential deal in salesforce": "salesforce_update_opportunity",
    "locate a person at a company in Salesforce": "salesforce_search_contact",
    "hide an old marketing campaign in salesforce but keep it": "salesforce_archive_campaign",
    "which filled-in web forms came in at HubSpot": "hubspot_list_form_submission",
    "build a web page for a campaign in hubspot": "hubspot_create_landing_page",
    "see one customer support request in Zendesk": "zendesk_get_ticket",
    "write a knowledge base page for zendesk": "zendesk_create_help_article",
    "how did customers score us in Zendesk": "zendesk_list_satisfaction_rating",
    "text somebody's phone with Twilio": "twilio_create_sms",
    "ring a person by twilio": "twilio_create_voice_call",
    "send a one-time code via Twilio": "twilio_create_verification",
    "letters that could not be delivered by SendGrid": "sendgrid_list_bounce",
    "stop mailing an address with sendgrid": "sendgrid_create_suppression",
    "temporary download link for S3": "aws_s3_create_presigned_url",
    "remove a blob from s3": "aws_s3_delete_object",
    "change who may access an S3 bucket": "aws_s3_update_bucket_policy",
    "launch a virtual server on EC2": "aws_ec2_create_instance",
    "terminate an ec2 machine": "aws_ec2_delete_instance",
    "back up the disk of an EC2 server": "aws_ec2_create_snapshot",
    "edit firewall rules in ec2": "aws_ec2_update_security_group",
    "run a lambda once": "aws_lambda_create_invocation",
    "publish code as a Lambda function": "aws_lambda_create_function",
    "kill a pod in kubernetes": "kubernetes_delete_pod",
    "scale the replicas of a Kubernetes deployment": "kubernetes_update_deployment",
    "see settings for containers in kubernetes": "kubernetes_get_config_map",
    "launch a docker container": "docker_create_container",
    "which Docker images exist here": "docker_list_image",
    "preview infrastructure changes with terraform": "terraform_create_plan",
    "set an input of the Terraform configuration": "terraform_update_variable",
    "speed up lookups in postgres with a new index": "postgres_create_index",
    "how does Postgres execute this statement": "postgres_get_query_plan",
    "dump the postgres data": "postgres_create_backup",
    "read a named value from Redis": "redis_get_key",
    "drop a redis sorted set": "redis_delete_sorted_set",
    "put a JSON record into Elasticsearch": "elasticsearch_create_document",
    "condition of the elasticsearch nodes": "elasticsearch_get_cluster_health",
    "new page of graphs in Grafana": "grafana_create_dashboard",
    "notify me on a condition in grafana": "grafana_create_alert_rule",
    "lines written by programs in Datadog containing timeout": "datadog_search_log",
    "declare an outage in datadog": "datadog_create_incident",
    "stack trace of an exception in Sentry": "sentry_get_error_event",
    "who is on duty tonight, PagerDuty": "pagerduty_get_schedule",
    "swap in a substitute on duty at pagerduty": "pagerduty_create_override",
    "make a set of songs on Spotify": "spotify_create_playlist",
    "find a song in spotify": "spotify_search_track",
    "subtitles for a YouTube clip": "youtube_create_caption",
    "add a row to Airtable": "airtable_create_record",
    "new task card on the Trello board": "trello_create_card",
    "schedule an online conference in Zoom": "zoom_create_meeting",
    "how do I drive from A to B on the map": "maps_get_route",
    "coordinates of an address": "maps_get_geocode",
    "will it rain tomorrow, weather": "weather_get_forecast",
    "ask for days off in HR": "hr_create_leave_request",
}
