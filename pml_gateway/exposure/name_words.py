"""Words in names of parameters: synonyms, abbreviations, opposites and units, which no word vector tells apart.

The vectors of the shipped model put `latitude` as near to `longitude` (.83) as `telephone` to `phone`, and `months`
nearer to `years` (.72) than `recipient` to `to` (.36). Rows are separated by bars.
"""

from __future__ import annotations

SYNONYMS = """
cwd workdir directory | enabled enable |
rating score | gender sex | profession occupation job | author writer | movie film | song track | team club |
hostname host | coupon voucher promo | weight mass | speed velocity | retry attempt | invoice bill |
employee staff | student pupil | teacher instructor | doctor physician | visibility privacy | schedule cron |
path file filepath pathname | path folder directory | url uri link href website webpage site |
query search find term phrase pattern q | query search keyword phrase q | query question prompt q ask |
pattern glob wildcard mask | pattern regex regexp | query sql statement |
content text body description message comment note data markdown | description detail note remark about |
text string | memo note comment remark message | title name | title subject summary headline heading |
topic subject | topic theme | label tag | limit count n k top number | count number quantity n | amount value |
amount sum | quantity amount count | price cost | offset skip start | position index | source from origin src |
target to destination dst | start from begin since after | end to until finish before till |
start origin departure | end destination arrival | old from find before previous search original current |
new to replace replacement after | sender from | recipient to receiver addressee | id identifier number |
email mail | phone telephone mobile | state status | stage status state phase | type kind | language locale |
currency money | country nation | city town | zip postcode | timezone zone | repository project |
organization company business employer | attendee participant invitee guest | person people |
image picture photo img | video clip movie | attachment file | symbol ticker | reaction emoji | command script cmd |
function script code | argument param parameter | option setting config configuration |
field column attribute property | column field header | row record entry | sheet worksheet | document doc |
commit revision sha hash | reference branch | preview simulate | recursive deep | edit change modification |
update change | item product article | item entry element | location place point | location address place |
origin source | order direction | birthday birthdate | givenname forename | username login handle |
password passphrase | operation action | method action | environment env | version revision tag | depth level |
priority importance urgency | severity level | scale factor | expression formula | delay wait | include show with |
exclude ignore | enabled active | job task | task todo | ticket issue case | channel conversation chat |
customer client buyer | order purchase | product item | category genre | stock share | user username | width w |
height h | temperature temp | longitude long | sourcebranch head | targetbranch base | passenger traveler adult |
departure depart outbound | return inbound | radius distance | old source | new destination
"""
"""Words that tools use for the same thing; a word in several rows has several readings."""

WORDS = """
checkin checkout
background department average coordinate template session library iteration button mimetype extension apikey table
pull sort deadline token color size frequency optional token namespace thread
"""
"""Further words that compounds are made of, and that are no slip of another one."""

ABBREVIATIONS = """
acct account | amt amount | avg average | behaviour behavior | bg background | btn button | catalogue catalog |
centre center | coord coordinate | cust customer | dept department | elem element | emp employee | ext extension |
grey gray | iter iteration | lib library | licence license | metre meter | obj object | opt option | pic picture |
programme program | qry query | req request | resp response | sess session | subj subject | tbl table |
theatre theater | tmpl template | txt text | vol volume | yr year | addr address | attr attribute |
auth authentication | cc copy | cfg config | cmd command | col column | conf config | ctx context | curr currency |
db database | desc description | dest destination | dir directory | doc document | dob birthday | env environment |
fmt format | fn function | freq frequency | img image | idx index | info information | lang language |
lat latitude | len length | lng longitude | loc location | lon longitude | max maximum | min minimum | mr pull |
msg message | ns namespace | num number | org organization | param parameter | pct percent | pos position |
pr pull | prev previous | prio priority | proj project | pw password | pwd password | qty quantity | ref reference |
repo repository | rev revision | src source | str string | tel phone | ts timestamp | tz timezone | usr user |
val value | ver version | mail email | colour color | favourite favorite | organisation organization
"""
"""Short and other spellings, each with the word that it stands for."""

PHRASES = """
check in: checkin | check out: checkout | currency code: currency | ticker symbol: ticker | stock symbol: ticker |
working directory: cwd | work directory: cwd | current directory: cwd |
api key: apikey | content type: mimetype | due by: deadline | file extension: extension | full name: name |
ip address: ip | mac address: mac | media type: mimetype | mime type: mimetype | web site: website |
birth date: birthday | date of birth: birthday | dry run: preview | due date: deadline | e mail: email |
email address: email | mail address: email | end index: end | family name: surname | file name: file |
file path: file | first name: givenname | folder path: folder | directory path: directory | given name: givenname |
last name: surname | merge request: pull | order by: sort | page number: page | page size: limit | per page: limit |
page limit: limit | result limit: limit | max result: limit | max count: limit | max item: limit |
max entry: limit | max row: limit | max number: limit | number result: limit | number item: limit |
result count: limit | item count: limit | top k: limit | top n: limit | phone number: phone | postal code: zip |
post code: zip | zip code: zip | pull request: pull | replace with: new | search query: query | search term: query |
search text: query | search string: query | search pattern: pattern | query string: query | query text: query |
sort by: sort | sort key: sort | order direction: order | sort order: order | sort direction: order |
source branch: sourcebranch | head branch: sourcebranch | target branch: targetbranch | base branch: targetbranch |
start index: offset | start at: offset | start cursor: cursor | next cursor: cursor | page token: cursor |
time zone: timezone | user name: username | validate only: preview
"""
"""Several words of a name that are one."""

SIDES = """
start end | start until | since until | since end | from to | begin finish | begin end | before after | first last |
old new | source target | source destination | origin destination | departure destination | sender recipient |
sender receiver | departure arrival | departure return | outbound return | outbound inbound | minimum maximum |
lower upper | include exclude | include ignore | allow deny | enable disable | enabled disabled | public private |
input output | head tail | head base | sourcebranch targetbranch | left right | top bottom | parent child |
next previous | latest oldest | ascending descending | up down | in out | gross net | success failure | read write |
local remote
"""
"""Two sides of one thing."""

DISTINCT = """
page limit | offset limit | width height depth | latitude longitude altitude | x y z | row column | buyer seller |
customer contact supplier vendor | author assignee reviewer reporter owner approver sender recipient |
created updated closed deleted due create close update start end modified | day month year week hour minute second |
hourly daily weekly monthly annual yearly quarterly | follower following | shipping billing home work | title body |
title description | givenname surname | host port | key value | bid ask | debit credit | ip mac | red green blue |
length width | date time
"""
"""Words that are near to each other and never the same."""

NEAR = """
location city | place city | city location | city place | query topic | keyword topic | question topic
"""
"""A given word, and a declared one that it stands for if that is the only one that is required and missing."""

ALTERNATIVES = """
filter where condition | page offset cursor | city state country county street zip continent region timezone |
email phone name username id password | sku product | symbol exchange
"""
"""Words for different ways to say which one or where, which are never the same either."""

UNITS = """
time: millisecond ms msec millis | second sec s secs | minute mins | hour hr h hrs | day
time: week wk | month mo | year yr yrs
money: cent cents pence | dollar usd dollars | euro eur euros | pound gbp | franc chf | yen jpy
length: millimeter mm | centimeter cm | meter metre m | kilometer kilometre km | inch inches
length: foot ft feet | yard yd | mile mi
mass: milligram mg | gram | kilogram kg kilo | ounce oz | pound lb lbs | ton tonne
temperature: celsius c centigrade | fahrenheit f | kelvin
data: bit bits | byte | kilobyte kb kib | megabyte mb mib | gigabyte gb gib | terabyte tb
angle: degree deg | radian rad
share: percent percentage pct | fraction ratio | permille
speed: kmh kph | mph | knot
text: characters chars | tokens | words
volume: liter litre | milliliter ml | gallon gal
"""
"""Units by dimension, the first word of each being what it is called."""

PLURALS = {
    "foot": "feet",
    "inch": "inches",
    "celsius": "degrees Celsius",
    "fahrenheit": "degrees Fahrenheit",
    "percent": "percent",
}

KINDS = "id number code url email date time timestamp datetime name text path file"
"""Words that say how a thing is named, which a value shows."""

FILLERS = "the a an of value string parameter argument"
"""Words that add nothing to others of a name."""

BOOLEAN_FILLERS = "is should flag use enable enabled do want be"
"""Words that add nothing to the name of a switch."""

COUNTS = "count number total"
CONTENTS = "value text content data payload body message string"
"""Names of the one thing that a tool writes or sends."""

STARTS = "from base source origin start"
"""Names of that from which something is made, if it says nothing of where it ends."""

LENGTHS = "duration time timeout delay wait interval period length term distance weight age size"
MOMENTS = "checkin checkout start end since until begin finish after before deadline"

GENERIC = """
amount quantity total sum size level rate percentage part list set type kind status unit format start end first last
maximum minimum count length key option range field
"""
"""Words that name nothing alone at the beginning of a description: `number of`, `type of`."""

REMOVING = "delete remove drop destroy erase purge wipe clear kill terminate cancel revoke uninstall reset"
"""Verbs of tools that destroy something, whether their annotations say so or not."""

BOUNDED = "depth retry attempt redirect iteration length"
"""Things whose maximum is what a parameter of their name says too: `max_depth` and `depth`."""

UNCOUNTED = "status address radius canvas alias bus class access process news sms dns https gps aws os"
"""Words that end with an s in the singular."""

QUALIFIERS = "per not no non without except default other all any none"
"""Words that change what the others of a name mean."""

STOPS = "of for to in on from that which with by as at and or is are if when where whose using used via per e.g"
"""Words that end the first noun of a description."""
