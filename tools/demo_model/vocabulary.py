"""The word lists that the demo model's training chats are drawn from.

Pure data. A changed list changes what the model knows and every number in ``docs/demo-model.md``:
retrain and measure again after an edit.
"""

# ruff: noqa: SIM905 - long word lists read better as text

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "New Delhi",
    "Egypt": "Cairo",
    "Russia": "Moscow",
    "Canada": "Ottawa",
    "Brazil": "Brasilia",
    "Portugal": "Lisbon",
    "Greece": "Athens",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Sweden": "Stockholm",
    "Norway": "Oslo",
    "Denmark": "Copenhagen",
    "Finland": "Helsinki",
    "Ireland": "Dublin",
    "Turkey": "Ankara",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Cuba": "Havana",
    "Hungary": "Budapest",
}

CITIES = (
    *CAPITALS.values(),
    *"London Munich Hamburg Milan Lyon Shanghai Shenzhen Mumbai Osaka Boston Chicago Seattle Toronto".split(),
    *"Sydney Zurich Geneva Prague Seoul Bangkok Singapore Barcelona Dallas Denver Miami Naples Porto".split(),
    *"Bergen Leeds".split(),
    "New York",
    "San Francisco",
)

UNSEEN_CITIES = tuple("Amsterdam Brussels Melbourne Kyoto Houston Marseille Valencia Glasgow".split())
"""Never drawn in training: the evaluation asks for them to tell copying from remembering."""

NAMES = tuple(
    "Anna Ben Carla David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olivia Paul Rosa Sam Tina Victor "
    "Olivier Janet Bob Alice Tom Lucy Max Nina".split()
)

WORDS = tuple(
    "apple river stone cloud table music green happy winter garden silver paper window orange little mountain "
    "yellow ocean coffee bridge forest candle pencil rocket purple sugar tiger lemon violin flower castle island "
    "button planet turtle mirror basket rabbit butter doctor summer pocket golden dragon kitten hammer ladder "
    "monkey needle parrot pillow pepper puzzle ribbon saddle spider ticket tunnel velvet walnut zebra the quick "
    "brown fox jumps over lazy dog hello world good morning my your we like to eat fresh bread and cheese this "
    "is a test of one two three cats sleep birds sing rain falls sun shines moon rises stars glow".split()
)

ANIMALS = tuple("dog cat fox bear rabbit mouse owl turtle lion frog".split())
ADJECTIVES = tuple("small brave happy clever quiet young old curious".split())
PLACES = tuple("forest garden village castle mountain river city island".split())
THINGS = (
    "golden key",
    "red ball",
    "silver coin",
    "blue flower",
    "magic stone",
    "little book",
    "shiny star",
    "warm hat",
)
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS = tuple("January February March April May June July August September October November December".split())
WEATHER = tuple("sunny cloudy rainy windy snowy foggy".split())

COLOR_NAMES = tuple("red green blue yellow orange purple black white".split())
LANGUAGES = tuple("English German French Spanish Italian Polish Turkish Greek".split())
NOUNS = tuple(
    "person user book product order city event song recipe ticket task report animal car house invoice trip".split()
)
VERBS = tuple("get find create save book update send record add set list submit".split())

NAMES_OF_PROPERTIES = tuple(
    "name title city text label color size age count price total score rating active done enabled status kind level "
    "id code date time email phone address country language summary answer reason category unit amount quantity weight "
    "height width year month day author user owner team item product order note tag priority valid public animal "
    "weather".split()
)
UNSEEN_PROPERTIES = tuple(
    "latitude invoice_number department isUrgent maxResults duration_ms sentiment confidence firstName lastName "
    "currency destination airline seats vegetarian diagnosis budget deadline url keywords altitude humidity headline "
    "attachments".split()
)
"""Never drawn in training: the evaluation has schemas of these names, too."""

FACTS = (
    ("What color is the sky?", "The sky is blue."),
    ("What color is grass?", "Grass is green."),
    ("What color is snow?", "Snow is white."),
    ("What color is a banana?", "A banana is yellow."),
    ("How many legs does a dog have?", "A dog has four legs."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("What does a cat say?", "A cat says meow."),
    ("What does a dog say?", "A dog says woof."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("What is the opposite of big?", "The opposite of big is small."),
    ("What is the opposite of day?", "The opposite of day is night."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
    ("List the colors of the rainbow.", "Red, orange, yellow, green, blue, indigo and violet."),
    ("What is a star?", "A star is a big ball of hot gas."),
    ("What is an API?", "An API is a way for programs to talk to each other."),
    ("Name three fruits.", "Apple, banana and orange."),
    ("Name three animals.", "Dog, cat and horse."),
    ("What is deep learning?", "Deep learning is a way for computers to learn from many examples."),
    ("What is Deep Learning?", "Deep learning is a way for computers to learn from many examples."),
    ("what is your hobby?", "I like to name shapes in pictures."),
)

TOPICS = tuple(
    "quantum physics,history,the moon,love,football,politics,computers,the ocean,music,cooking,math,dinosaurs,"
    "art,money,trees,space,poetry,philosophy,health,trains".split(",")
)

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "Answer the question.",
    "You are a tiny demo model.",
    "Be brief.",
    "You are a student who is good at math.",
)
